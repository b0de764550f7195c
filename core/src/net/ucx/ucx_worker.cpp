#include "net/ucx/ucx_worker.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/foreign_descriptors.h"

namespace lockstep::comm {
namespace {

using Kind = UcxFrame::Kind;

// The largest part fits into one segment of TCP (UCX_TCP_TX_SEG_SIZE) with its frame: then no part is copied more than
// once.
constexpr std::size_t kPartBytes = std::size_t{255} << 10;
constexpr std::size_t kLine = 64;
constexpr int kLooks = 4;  // how often sleep() looks for connections that UCX opens late

std::size_t part_size(std::size_t bytes) {
  const std::size_t parts = std::max<std::size_t>(1, (bytes + kPartBytes - 1) / kPartBytes);
  return std::max<std::size_t>(kLine, ((bytes + parts - 1) / parts + kLine - 1) / kLine * kLine);
}

}  // namespace

std::shared_ptr<UcxConnection> UcxWorker::connection_to(const std::string& address) {
  if (const auto known = connections_.find(address); known != connections_.end()) return known->second;
  auto connection = std::make_shared<UcxConnection>(UcxConnection{this, address});
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxWorker::on_error;
  params.err_handler.arg = connection.get();
  if (ucx_.ucp_ep_create(worker_, &params, &connection->endpoint) != UCS_OK) {
    connection->endpoint = nullptr;
    connection->is_lost = true;
    return connection;
  }
  connections_.emplace(address, connection);
  if (connected_) take_connections();  // this connection was not made at the start
  return connection;
}

std::shared_ptr<UcxConnection> UcxWorker::connect(const std::string& address, UcxInbox& inbox, std::uint64_t from,
                                                  std::uint64_t to) {
  MutexLock lock(mutex_);
  std::shared_ptr<UcxConnection> connection = connection_to(address);
  if (connection->is_lost) {
    inbox.lose(to);
    return connection;
  }
  connection->users.emplace(&inbox, to);
  start(connection, nullptr, {to, from, Kind::kOpen}, {{}, address_.data(), address_.size()});
  return connection;
}

void UcxWorker::send(const std::shared_ptr<UcxConnection>& connection, UcxInbox& inbox, const UcxFrame& frame,
                     const Content& content, TransportRequest* request) {
  MutexLock lock(mutex_);
  start(connection, &inbox, frame, content, request);
}

void UcxWorker::offer(const std::shared_ptr<UcxConnection>& connection, UcxInbox& inbox, UcxFrame frame,
                      const Content& content, TransportRequest& request) {
  MutexLock lock(mutex_);
  frame.bytes = content.bytes;
  frame.tag = inbox.keep({connection, frame.to, content.data, content.bytes, &request});
  start(connection, &inbox, frame, {content.text});
}

void UcxWorker::receive(UcxInbox& inbox, const UcxInbox::Key& key, void* data, std::size_t bytes,
                        TransportRequest& request) {
  MutexLock lock(mutex_);
  inbox.receive(key, data, bytes, request);
}

void UcxWorker::start(const std::shared_ptr<UcxConnection>& connection, UcxInbox* inbox, const UcxFrame& frame,
                      const Content& content, TransportRequest* request) {
  if (connection != nullptr && connection->endpoint != nullptr)
    return start(connection, connection->endpoint, inbox, frame, content, request);
  if (request != nullptr) inbox->end(request, UcxInbox::lost());
  if (frame.kind == Kind::kOffered) inbox->sent(frame.tag, UcxInbox::lost());
}

void UcxWorker::start(const std::shared_ptr<UcxConnection>& connection, ucp_ep_h endpoint, UcxInbox* inbox,
                      UcxFrame frame, const Content& content, TransportRequest* request) {
  frame.bytes = std::max<std::uint64_t>(frame.bytes, content.bytes);
  const std::size_t step = part_size(content.bytes);
  const std::size_t parts = std::max<std::size_t>(1, (content.bytes + step - 1) / step);
  const std::size_t head = sizeof frame + content.text.size();
  const std::uint64_t offer = frame.kind == Kind::kOffered ? frame.tag : 0;
  const bool is_awaited = request != nullptr || offer != 0;
  sendings_.push_back({this, is_awaited ? inbox : nullptr, request, offer, connection, std::string(parts * head, '\0'),
                       parts + 1});  // one for this call
  Sending& sending = sendings_.back();
  sending.self = std::prev(sendings_.end());

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  if (frame.kind == Kind::kOpen) param.flags |= UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = &UcxWorker::on_sent;
  param.user_data = &sending;
  for (std::size_t part = 0; part < parts; ++part) {
    frame.offset = part * step;
    char* const at = sending.heads.data() + part * head;
    std::memcpy(at, &frame, sizeof frame);
    if (!content.text.empty()) std::memcpy(at + sizeof frame, content.text.data(), content.text.size());
    const std::size_t bytes = std::min(step, content.bytes - frame.offset);
    const auto* const data = static_cast<const char*>(content.data) + (bytes == 0 ? 0 : frame.offset);
    const ucs_status_ptr_t sent = ucx_.ucp_am_send_nbx(endpoint, kUcxMessageId, at, head, data, bytes, &param);
    if (!UCS_PTR_IS_PTR(sent)) end_part(sending, UCS_PTR_STATUS(sent));
  }
  end_part(sending, UCS_OK);
}

void UcxWorker::end_part(Sending& sending, ucs_status_t status) {
  if (status != UCS_OK) sending.status = status;
  if (sending.inbox != nullptr) sending.inbox->count_part();
  if (--sending.parts > 0) return;
  if (sending.inbox != nullptr) {
    Status end = sending.status == UCS_OK ? Status() : Status(ErrorCode::kPeerFailed, ucx_.text_of(sending.status));
    sending.offer != 0 ? sending.inbox->sent(sending.offer, end) : sending.inbox->end(sending.request, std::move(end));
  }
  sendings_.erase(sending.self);
}

void UcxWorker::on_sent(void* ucx_request, ucs_status_t status, void* user_data) {
  auto& sending = *static_cast<Sending*>(user_data);
  UcxWorker& worker = *sending.worker;
  worker.end_part(sending, status);
  worker.ucx_.ucp_request_free(ucx_request);
}

ucs_status_t UcxWorker::on_message(void* argument, const void* header, std::size_t header_bytes, void* data,
                                   std::size_t bytes, const ucp_am_recv_param_t* param) {
  UcxFrame frame;
  const bool is_whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (header_bytes < sizeof frame || !is_whole) return UCS_OK;  // not from a channel
  std::memcpy(&frame, header, sizeof frame);
  const std::string_view text(static_cast<const char*>(header) + sizeof frame, header_bytes - sizeof frame);
  const bool may_reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  static_cast<UcxWorker*>(argument)->arrived(frame, text, data, bytes, may_reply ? param->reply_ep : nullptr);
  return UCS_OK;
}

void UcxWorker::arrived(const UcxFrame& frame, std::string_view text, const void* data, std::size_t bytes,
                        ucp_ep_h reply) {
  const auto channel = channels_.find(frame.to);
  if (channel == channels_.end()) {
    if (frame.kind == Kind::kOpen && reply != nullptr)
      start(nullptr, reply, nullptr, {frame.from, frame.to, Kind::kEnd}, {}, nullptr);
    return;
  }
  UcxInbox& inbox = *channel->second;
  const bool is_taken = inbox.put(frame, text, data, bytes);
  if (is_taken) start(connection_of(inbox, frame.from), &inbox, {frame.from, frame.to, Kind::kTaken, 0, frame.tag}, {});
  if (frame.kind == Kind::kOpen) looks_ = kLooks;  // UCX may have accepted a connection
  const UcxInbox::Offer* const offer = frame.kind == Kind::kWanted ? inbox.want(frame.tag, frame.from) : nullptr;
  if (offer == nullptr) return;
  start(offer->connection, &inbox, {offer->to, frame.to, Kind::kOffered, 0, frame.tag},
        {{}, offer->data, offer->bytes});
}

std::shared_ptr<UcxConnection> UcxWorker::connection_of(UcxInbox& inbox, std::uint64_t peer) const {
  for (const auto& [address, connection] : connections_) {
    if (connection->users.contains({&inbox, peer})) return connection;
  }
  return nullptr;
}

void UcxWorker::on_error(void* argument, ucp_ep_h, ucs_status_t) {
  auto& connection = *static_cast<UcxConnection*>(argument);
  connection.is_lost = true;
  connection.worker->some_lost_ = true;
  for (const auto& [inbox, peer] : connection.users) inbox->lose(peer);
  connection.users.clear();
  for (const auto& [number, inbox] : connection.worker->channels_) inbox->forget_openers(connection.address);
}

void UcxWorker::break_connection(UcxConnection& connection) {
  on_error(&connection, nullptr, UCS_OK);
  close_lost();
  wake_sleepers();
}

// UCX does not allow this inside its own calls.
void UcxWorker::close_lost() {
  some_lost_ = false;
  std::erase_if(connections_, [&](const auto& item) {
    UcxConnection& connection = *item.second;
    if (!connection.is_lost) return false;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucx_.ucp_ep_close_nbx(std::exchange(connection.endpoint, nullptr), &param);
    if (UCS_PTR_IS_PTR(closing)) ucx_.ucp_request_free(closing);
    return true;
  });
}

void UcxWorker::progress() {
  ucx_.ucp_worker_progress(worker_);
  if (some_lost_) close_lost();
  wake_sleepers();
}

void UcxWorker::wake_sleepers() {
  if (watched_for_ != nullptr && !is_signalled_ && watched_for_->has_news()) {
    is_signalled_ = true;
    (void)ucx_.ucp_worker_signal(worker_);
  }
  if (std::any_of(sleepers_.begin(), sleepers_.end(), [](const UcxInbox* inbox) { return inbox->has_news(); }))
    changed_.notify_all();
}

bool UcxWorker::progress(UcxInbox& inbox, std::vector<UcxInbox::Event>& events) {
  MutexLock lock(mutex_);
  progress();
  return inbox.take_events(events);
}

bool UcxWorker::has_news(const UcxInbox& inbox) {
  MutexLock lock(mutex_);
  return inbox.has_news();
}

void UcxWorker::sleep(const UcxInbox& inbox, std::chrono::microseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  if (connected_ && looks_ > 0) {
    --looks_;
    take_worker_connections(event_fd_);
  }
  const std::uint64_t known = inbox.count();
  // Another thread of the same channel may take the news.
  const auto has_news = [&] { return inbox.has_news() || inbox.count() != known; };
  for (bool in_time = true; in_time && !has_news();) {
    if (watched_for_ != nullptr) {
      const auto self = sleepers_.insert(&inbox);
      in_time = changed_.wait_until(mutex_, end);
      sleepers_.erase(self);
      continue;
    }
    const auto left = end - std::chrono::steady_clock::now();
    in_time = left.count() > 0;
    progress();
    if (!in_time || has_news() || ucx_.ucp_worker_arm(worker_) != UCS_OK) continue;
    watched_for_ = &inbox;
    is_signalled_ = false;
    mutex_.unlock();
    pollfd entry{event_fd_, POLLIN, 0};
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec wait{seconds.count(), static_cast<long>(std::chrono::nanoseconds(left - seconds).count())};
    ppoll(&entry, 1, &wait, nullptr);
    mutex_.lock();
    watched_for_ = nullptr;
    progress();
  }
  if (watched_for_ == nullptr && !sleepers_.empty()) changed_.notify_one();  // it waits for UCX in this thread's place
}

void UcxWorker::take_connections() {
  take_worker_connections(event_fd_);
  looks_ = kLooks;
}

// Under the lock UCX closes no connection.
void UcxWorker::look_for_cut_links() {
  MutexLock lock(mutex_);
  shut_down_cut_connections(event_fd_);
}

void UcxWorker::close_to_programs() {
  MutexLock lock(mutex_);
  take_connections();
  connected_ = true;
}

}  // namespace lockstep::comm
