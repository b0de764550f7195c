#include "net/ucx/ucx_transport.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <list>
#include <map>
#include <vector>

#include "base/foreign_descriptors.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/log.h"
#include "net/listen_guard.h"
#include "net/port_guard.h"
#include "net/ucx/ucx_context.h"

namespace lockstep::comm {
namespace {

constexpr unsigned kActiveMessageId = 1;

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxLibrary& ucx, std::shared_ptr<UcxContext> context, ActiveMessageHandler handler,
               std::string description)
      : ucx_(ucx), context_(std::move(context)), handler_(std::move(handler)), description_(std::move(description)) {}
  ~UcxTransport() override {
    close(/*gently=*/false, std::chrono::milliseconds(0));
    if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
  }

  Status open(const Admitted& admitted) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    LOCKSTEP_RETURN_IF_ERROR(create_worker(params, admitted));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kActiveMessageId;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &UcxTransport::on_active_message;
    handler.arg = this;
    return check(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler), "handler of active messages");
  }

  std::string address() const override {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    if (ucx_.ucp_worker_get_address(worker_, &address, &bytes) != UCS_OK) return {};
    std::string result(reinterpret_cast<const char*>(address), bytes);
    ucx_.ucp_worker_release_address(worker_, address);
    return result;
  }
  std::string describe() const override { return description_; }

  void introduce(int peer, std::string address) override { connections_[peer].address = std::move(address); }

  void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) override {
    Pending* pending = begin(request);
    const ucp_ep_h endpoint = endpoint_of(peer, *pending);
    if (endpoint == nullptr) return;
    ucp_request_param_t param = parameters(pending);
    param.cb.send = &UcxTransport::on_sent;
    keep(pending, ucx_.ucp_tag_send_nbx(endpoint, data, bytes, tag, &param));
  }

  void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) override {
    Pending* pending = begin(request);
    // This rank learns of the peer's death only if it has opened a connection itself.
    if (endpoint_of(peer, *pending) == nullptr) return;
    ucp_request_param_t param = parameters(pending);
    param.cb.recv = &UcxTransport::on_received;
    keep(pending, ucx_.ucp_tag_recv_nbx(worker_, data, bytes, tag, ~std::uint64_t{0}, &param));
  }

  void post(int peer, std::string_view header, const void* data, std::size_t bytes,
            TransportRequest& request) override {
    Pending* pending = begin(request);
    const ucp_ep_h endpoint = endpoint_of(peer, *pending);
    if (endpoint == nullptr) return;
    pending->header = header;
    ucp_request_param_t param = parameters(pending);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = bytes > kEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    param.cb.send = &UcxTransport::on_sent;
    keep(pending, ucx_.ucp_am_send_nbx(endpoint, kActiveMessageId, pending->header.data(), pending->header.size(), data,
                                       bytes, &param));
  }

  void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) override {
    Pending* pending = begin(request);
    ucp_request_param_t param = parameters(pending);
    param.cb.recv_am = &UcxTransport::on_fetched;
    keep(pending, ucx_.ucp_am_recv_data_nbx(worker_, handle, data, bytes, &param));
  }

  void discard(void* handle) override { ucx_.ucp_am_data_release(worker_, handle); }

  bool progress() override { return worker_ != nullptr && !closed_ && ucx_.ucp_worker_progress(worker_) != 0; }

  bool may_sleep() override {
    if (connected_ && looks_ > 0) {
      --looks_;
      close_to_programs();
    }
    return worker_ != nullptr && !closed_ && ucx_.ucp_worker_arm(worker_) == UCS_OK;
  }

  void sleep(std::chrono::microseconds limit) const override {
    pollfd entry{event_fd_, POLLIN, 0};
    const auto seconds = std::chrono::floor<std::chrono::seconds>(limit);
    const timespec wait{seconds.count(), static_cast<long>(std::chrono::nanoseconds(limit - seconds).count())};
    ppoll(&entry, 1, &wait, nullptr);
  }

  bool is_connected(int peer) const override {
    const auto found = connections_.find(peer);
    return found != connections_.end() && found->second.endpoint != nullptr;
  }

  bool is_lost(int peer) const override {
    const auto found = connections_.find(peer);
    return found != connections_.end() && found->second.lost;
  }

  void close_to_programs() override {
    take_worker_connections(event_fd_);
    connected_ = true;
  }

  void close(bool gently, std::chrono::milliseconds limit) override {
    if (worker_ == nullptr || closed_) return;
    if (gently) {
      ucp_request_param_t param{};
      finish(ucx_.ucp_worker_flush_nbx(worker_, &param), Deadline::after(limit));
    }
    const Deadline deadline = Deadline::after(kCloseLimit);
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      void* const ucx_request = (pending++)->ucx_request;  // cancelling may erase it at once
      if (ucx_request != nullptr) ucx_.ucp_request_cancel(worker_, ucx_request);
    }
    for (auto& [peer, connection] : connections_) {
      if (connection.endpoint == nullptr) continue;
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_EP_CLOSE_FLAG_FORCE;
      finish(ucx_.ucp_ep_close_nbx(std::exchange(connection.endpoint, nullptr), &param), deadline);
    }
    while (!pending_.empty() && !deadline.expired()) ucx_.ucp_worker_progress(worker_);
    // UCX may settle the rest later. The caller's requests are no longer touched then.
    for (Pending& pending : pending_) pending.request = nullptr;
    closed_ = true;
  }

 private:
  struct Connection {
    std::string address;
    ucp_ep_h endpoint = nullptr;  // null: not opened yet
    bool lost = false;
  };
  // A request that UCX has under way.
  struct Pending {
    UcxTransport* owner;
    TransportRequest* request;  // null: ended by close()
    void* ucx_request;          // null until UCX has taken it
    std::string header;         // of an active message
    std::list<Pending>::iterator self;
  };
  static constexpr auto kCloseLimit = std::chrono::milliseconds(200);

  Status check(ucs_status_t status, const char* what) const {
    if (status == UCS_OK) return {};
    return {ErrorCode::kUnavailable, fmt::format("UCX, {}: {} ({})", what, ucx_.text_of(status), description_)};
  }

  // UCX 1.13 ends the process if a stranger connects while the worker is made. So its ports are closed to strangers
  // before they listen. If the kernel does not allow this, they are closed right after.
  Status create_worker(const ucp_worker_params_t& params, const Admitted& admitted) {
    Status closed;
    std::vector<int> listeners;
    const auto close_port = [&](int socket) {
      listeners.push_back(socket);
      if (Status status = close_to_strangers(socket, admitted); !status.ok()) closed = std::move(status);
    };
    ucs_status_t created = UCS_OK;
    const auto watched = run_watching_listen(
        [&] { created = ucx_.ucp_worker_create(context_->handle(), &params, &worker_); }, close_port);
    LOCKSTEP_RETURN_IF_ERROR(watched.status());
    LOCKSTEP_RETURN_IF_ERROR(explain(check(created, "worker")));
    LOCKSTEP_RETURN_IF_ERROR(check(ucx_.ucp_worker_get_efd(worker_, &event_fd_), "event descriptor"));
    for (const int listener : take_worker_descriptors(event_fd_, listeners, address())) {
      if (!watched.value()) close_port(listener);
    }
    // The group works without this, as long as no stranger connects. Other groups would say the same.
    static std::atomic<bool> said{false};
    if (!closed.ok() && !said.exchange(true)) log::warning(closed.message());
    return {};
  }
  // UCX does not say what it lacks.
  static Status explain(Status failed) {
    constexpr std::size_t kNeeded = 16;  // more than a worker opens
    rlimit limit{};
    if (failed.ok() || getrlimit(RLIMIT_NOFILE, &limit) != 0) return failed;
    const std::size_t open = own_descriptors().size();
    if (open + kNeeded < limit.rlim_cur) return failed;
    return {failed.code(), fmt::format("{}: this process has {} descriptors open and may have {}. Each group over "
                                       "several machines needs some 6, and one more for each connection: make fewer "
                                       "groups, or raise the limit (ulimit -n)",
                                       failed.message(), open, limit.rlim_cur)};
  }

  Pending* begin(TransportRequest& request) {
    request = TransportRequest();
    request.done = false;
    pending_.push_back({this, &request, nullptr, {}, {}});
    pending_.back().self = std::prev(pending_.end());
    beginning_ = &pending_.back();
    return beginning_;
  }
  static ucp_request_param_t parameters(Pending* pending) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = pending;
    return param;
  }
  // Takes what UCX has returned. UCX may already have called back, though it returns a request: this happens if all
  // fragments of a message had arrived before the receive was posted. Then `pending` has been erased.
  void keep(Pending* pending, ucs_status_ptr_t ucx_request) {
    if (beginning_ != pending) return;
    if (UCS_PTR_IS_PTR(ucx_request)) {
      pending->ucx_request = ucx_request;
    } else {
      settle(*pending, UCS_PTR_STATUS(ucx_request));
    }
  }
  void settle(Pending& pending, ucs_status_t status) {
    if (TransportRequest* const request = pending.request; request != nullptr) {
      if (status == UCS_ERR_MESSAGE_TRUNCATED) {
        request->status = {ErrorCode::kMismatch, "the message is longer than its receiver expects"};
      } else if (status != UCS_OK) {
        request->status = {ErrorCode::kPeerFailed, ucx_.text_of(status)};
      }
      request->done = true;
    }
    if (beginning_ == &pending) beginning_ = nullptr;
    pending_.erase(pending.self);
  }
  // Null: the request has failed.
  ucp_ep_h endpoint_of(int peer, Pending& pending) {
    const auto found = connections_.find(peer);
    if (found != connections_.end() && !closed_) {
      Connection& connection = found->second;
      if (connection.endpoint == nullptr && !connection.lost) connect(connection);
      if (!connection.lost) return connection.endpoint;
    }
    settle(pending, UCS_ERR_NOT_CONNECTED);
    return nullptr;
  }
  void connect(Connection& connection) {
    ucp_ep_params_t params{};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(connection.address.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = &UcxTransport::on_error;
    params.err_handler.arg = &connection;
    if (ucx_.ucp_ep_create(worker_, &params, &connection.endpoint) != UCS_OK) connection.lost = true;
    if (connected_) close_to_programs();  // this connection was not made at the start
  }

  void finish(ucs_status_ptr_t ucx_request, Deadline deadline) {
    if (!UCS_PTR_IS_PTR(ucx_request)) return;
    while (ucx_.ucp_request_check_status(ucx_request) == UCS_INPROGRESS && !deadline.expired()) {
      ucx_.ucp_worker_progress(worker_);
    }
    ucx_.ucp_request_free(ucx_request);
  }

  static void complete(void* ucx_request, ucs_status_t status, void* user_data) {
    auto* pending = static_cast<Pending*>(user_data);
    const UcxLibrary& ucx = pending->owner->ucx_;
    pending->owner->settle(*pending, status);
    ucx.ucp_request_free(ucx_request);
  }
  static void on_sent(void* ucx_request, ucs_status_t status, void* user_data) {
    complete(ucx_request, status, user_data);
  }
  static void on_received(void* ucx_request, ucs_status_t status, const ucp_tag_recv_info_t*, void* user_data) {
    complete(ucx_request, status, user_data);
  }
  static void on_fetched(void* ucx_request, ucs_status_t status, std::size_t, void* user_data) {
    complete(ucx_request, status, user_data);
  }
  static void on_error(void* argument, ucp_ep_h, ucs_status_t) { static_cast<Connection*>(argument)->lost = true; }
  static ucs_status_t on_active_message(void* argument, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t bytes, const ucp_am_recv_param_t* param) {
    const bool large = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    ActiveMessage message;
    message.header = {static_cast<const char*>(header), header_bytes};
    message.data = large ? nullptr : data;
    message.bytes = bytes;
    message.handle = large ? data : nullptr;
    const bool kept = static_cast<UcxTransport*>(argument)->handler_(message);
    return kept && large ? UCS_INPROGRESS : UCS_OK;
  }

  const UcxLibrary& ucx_;
  const std::shared_ptr<UcxContext> context_;
  ActiveMessageHandler handler_;
  std::string description_;
  ucp_worker_h worker_ = nullptr;
  bool connected_ = false;
  int looks_ = 4;  // how often may_sleep() still looks for connections that UCX opens late
  int event_fd_ = -1;
  bool closed_ = false;
  std::map<int, Connection> connections_;
  std::list<Pending> pending_;
  Pending* beginning_ = nullptr;  // the latest request, unless it has ended
};

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                            ActiveMessageHandler handler) {
  LOCKSTEP_ASSIGN_OR_RETURN(const UcxLibrary* ucx, UcxLibrary::get());
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<UcxContext> context, UcxContext::get(*ucx, interface));
  // Not from Environment: see UcxContext::make().
  const char* devices = std::getenv("UCX_NET_DEVICES");
  const std::string where = devices != nullptr ? devices : interface.name.empty() ? "any interface" : interface.name;
  auto transport = std::make_unique<UcxTransport>(*ucx, std::move(context), std::move(handler),
                                                  fmt::format("UCX {} on {}", ucx->ucp_get_version_string(), where));
  LOCKSTEP_RETURN_IF_ERROR(transport->open(admitted));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace lockstep::comm
