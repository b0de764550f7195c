#include "net/ucx/ucx_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "net/ucx/ucx_worker.h"

namespace lockstep::comm {
namespace {

using Kind = UcxFrame::Kind;

// A channel of a worker. The rank's group holds its lock around every call.
class UcxTransport final : public Transport {
 public:
  UcxTransport(std::shared_ptr<UcxWorker> worker, ActiveMessageHandler handler, std::string description)
      : worker_(std::move(worker)), handler_(std::move(handler)), description_(std::move(description)) {}
  ~UcxTransport() override { close(/*gently=*/false, std::chrono::milliseconds(0)); }

  Status open() {
    LOCKSTEP_ASSIGN_OR_RETURN(number_, worker_->join(inbox_));
    closed_ = false;
    return {};
  }

  // The channel's number and the address of its worker.
  std::string address() const override {
    return std::string(reinterpret_cast<const char*>(&number_), sizeof number_) + worker_->address();
  }
  std::string describe() const override { return description_; }

  void introduce(int peer, std::string address) override {
    Peer known;
    if (address.size() > sizeof known.number) {
      std::memcpy(&known.number, address.data(), sizeof known.number);
      known.address = address.substr(sizeof known.number);
    }
    peers_[peer] = std::move(known);
  }

  void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) override {
    if (const Peer* const to = begin(peer, request))
      worker_->send(to->connection, inbox_, {to->number, number_, Kind::kTagged, 0, tag}, {{}, data, bytes}, &request);
  }

  // This rank learns of the peer's death only if it has opened a connection itself.
  void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) override {
    if (const Peer* const from = begin(peer, request))
      worker_->receive(inbox_, {from->number, /*is_offered=*/false, tag}, data, bytes, request);
  }

  void post(int peer, std::string_view header, const void* data, std::size_t bytes,
            TransportRequest& request) override {
    const Peer* const to = begin(peer, request);
    if (to == nullptr) return;
    if (bytes > kEagerBytes) {
      worker_->offer(to->connection, inbox_, {to->number, number_, Kind::kOffer}, {header, data, bytes}, request);
    } else {
      worker_->send(to->connection, inbox_, {to->number, number_, Kind::kMessage}, {header, data, bytes}, &request);
    }
  }

  void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) override {
    const Offered offered = take(handle);
    const Peer* const from = begin(offered.peer, request);
    if (from == nullptr) return;
    worker_->receive(inbox_, {from->number, /*is_offered=*/true, offered.number}, data, bytes, request);
    answer(*from, Kind::kWanted, offered.number);
  }

  void discard(void* handle) override {
    const Offered offered = take(handle);
    TransportRequest none;
    if (const Peer* const from = begin(offered.peer, none)) answer(*from, Kind::kTaken, offered.number);
  }

  bool progress() override {
    if (closed_) return false;
    std::vector<UcxInbox::Event> events;
    const bool moved = worker_->progress(inbox_, events);
    for (UcxInbox::Event& event : events) handle(event);
    return moved;
  }

  bool may_sleep() override { return !closed_ && !worker_->has_news(inbox_); }
  void sleep(std::chrono::microseconds limit) override { worker_->sleep(inbox_, limit); }

  bool is_connected(int peer) const override {
    const auto found = peers_.find(peer);
    return found != peers_.end() && found->second.connection != nullptr;
  }
  bool is_lost(int peer) const override {
    const auto found = peers_.find(peer);
    return found != peers_.end() && lost_.contains(found->second.number);
  }

  void look_for_cut_links() override { worker_->look_for_cut_links(); }
  void close_to_programs() override { worker_->close_to_programs(); }

  void close(bool gently, std::chrono::milliseconds limit) override {
    if (std::exchange(closed_, true)) return;
    std::vector<UcxInbox::Event> events;
    worker_->leave(inbox_, number_, gently, limit, events);
    for (UcxInbox::Event& event : events) {
      if (const auto* const done = std::get_if<UcxInbox::Done>(&event)) end(*done);
    }
  }

 private:
  struct Peer {
    std::uint64_t number = 0;  // of its channel
    std::string address = {};
    std::shared_ptr<UcxConnection> connection = {};  // null: not opened yet
  };
  // A large message that a peer offers: what a handle points to.
  struct Offered {
    int peer;
    std::uint64_t number;
    std::list<Offered>::iterator self;
  };

  // Begins a request with this peer, over a connection. Null: the request has failed.
  const Peer* begin(int peer, TransportRequest& request) {
    const auto found = peers_.find(peer);
    if (found == peers_.end() || closed_ || is_lost(peer)) {
      end({&request, UcxInbox::lost()});
      return nullptr;
    }
    request = TransportRequest();
    request.done = false;
    Peer& known = found->second;
    if (known.connection == nullptr) known.connection = worker_->connect(known.address, inbox_, number_, known.number);
    return &known;
  }
  static void end(const UcxInbox::Done& done) {
    done.request->status = done.status;
    done.request->done = true;
  }

  void handle(UcxInbox::Event& event) {
    if (const auto* const done = std::get_if<UcxInbox::Done>(&event)) {
      end(*done);
    } else if (const auto* const lost = std::get_if<UcxInbox::Lost>(&event)) {
      lost_.insert(lost->from);
    } else {
      hand_over(std::get<UcxInbox::Arrived>(event));
    }
  }
  void hand_over(UcxInbox::Arrived& arrived) {
    void* handle = nullptr;
    if (arrived.offer != 0) {
      const auto sender = std::find_if(peers_.begin(), peers_.end(),
                                       [&](const auto& peer) { return peer.second.number == arrived.from; });
      if (sender == peers_.end()) return;
      offered_.push_back({sender->first, arrived.offer, {}});
      offered_.back().self = std::prev(offered_.end());
      handle = arrived.message.handle = &offered_.back();
    }
    if (!handler_(std::move(arrived.message)) && handle != nullptr) discard(handle);
  }
  Offered take(void* handle) {
    const Offered offered = *static_cast<Offered*>(handle);
    offered_.erase(offered.self);
    return offered;
  }
  // To an offer.
  void answer(const Peer& peer, Kind kind, std::uint64_t offer) {
    worker_->send(peer.connection, inbox_, {peer.number, number_, kind, 0, offer}, {}, nullptr);
  }

  const std::shared_ptr<UcxWorker> worker_;
  const ActiveMessageHandler handler_;
  const std::string description_;
  std::uint64_t number_ = 0;
  bool closed_ = true;
  UcxInbox inbox_;  // the worker's lock guards it
  std::map<int, Peer> peers_;
  std::set<std::uint64_t> lost_;  // channels of peers
  std::list<Offered> offered_;
};

}  // namespace

Result<std::unique_ptr<Transport>> open_channel(std::shared_ptr<UcxWorker> worker, ActiveMessageHandler handler,
                                                std::string description) {
  auto transport = std::make_unique<UcxTransport>(std::move(worker), std::move(handler), std::move(description));
  LOCKSTEP_RETURN_IF_ERROR(transport->open());
  return std::unique_ptr<Transport>(std::move(transport));
}

Result<std::unique_ptr<Transport>> open_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                            ActiveMessageHandler handler) {
  LOCKSTEP_ASSIGN_OR_RETURN(const UcxLibrary* ucx, UcxLibrary::get());
  // Not from Environment: see UcxContext::make().
  const char* devices = std::getenv("UCX_NET_DEVICES");
  const std::string where = devices != nullptr ? devices : interface.name.empty() ? "any interface" : interface.name;
  LOCKSTEP_ASSIGN_OR_RETURN(auto worker, UcxWorker::of_process(*ucx, interface, admitted));
  return open_channel(std::move(worker), std::move(handler),
                      fmt::format("UCX {} on {}", ucx->ucp_get_version_string(), where));
}

}  // namespace lockstep::comm
