#include "support/fake_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::test {

using namespace comm;

namespace {

// A large active message, which stays with its sender. Under the network's mutex.
struct Offer {
  const void* data;
  std::size_t bytes;
  bool taken = false;      // the receiver does not need it any more
  bool withdrawn = false;  // the sender has closed: `data` may be gone
};

struct Frame {
  int from = 0;
  std::optional<std::uint64_t> tag = {};  // none: an active message
  std::string header = {};
  std::string bytes = {};
  std::shared_ptr<Offer> offer = {};
};

struct Port {
  std::list<Frame> inbox;  // in the order of sending
  bool open = true;        // takes what arrives
  bool gone = false;       // the others lose their connections
};

}  // namespace

struct FakeSwitch::Network {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Port> ports;
  std::set<std::pair<int, int>> held;
  std::optional<std::mt19937_64> random;

  // What arrives next at a port: the first frame of a sender that is not held back. Under the mutex.
  std::list<Frame>::iterator next(int to) {
    std::list<Frame>& inbox = ports[to].inbox;
    std::vector<std::list<Frame>::iterator> firsts;
    std::set<int> seen;
    for (auto frame = inbox.begin(); frame != inbox.end(); ++frame) {
      if (!held.contains({frame->from, to}) && seen.insert(frame->from).second) firsts.push_back(frame);
    }
    if (firsts.empty()) return inbox.end();
    return random ? firsts[(*random)() % firsts.size()] : firsts.front();
  }
  // Nothing passes between these two any more, and nothing is still to arrive. Under the mutex.
  bool is_over(int from, int to) const {
    if (ports[to].gone) return true;
    if (!ports[from].gone || held.contains({from, to})) return false;
    return std::ranges::none_of(ports[to].inbox, [&](const Frame& frame) { return frame.from == from; });
  }
};

namespace {

const Status kLost(ErrorCode::kPeerFailed, "the connection is lost");
const Status kCanceled(ErrorCode::kPeerFailed, "the request is canceled");

class FakeTransport final : public Transport {
 public:
  FakeTransport(std::shared_ptr<FakeSwitch::Network> network, int port, ActiveMessageHandler handler)
      : network_(std::move(network)), port_(port), handler_(std::move(handler)) {}
  ~FakeTransport() override {
    close(/*gently=*/false, std::chrono::milliseconds(0));
    const std::lock_guard lock(network_->mutex);
    network_->ports[port_].gone = true;
    network_->changed.notify_all();
  }

  std::string address() const override { return std::to_string(port_); }
  std::string describe() const override { return "a fake network"; }
  void introduce(int peer, std::string address) override { ports_[peer] = std::stoi(address); }

  void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) override {
    enqueue(peer, {port_, tag}, data, bytes, request);
  }
  void post(int peer, std::string_view header, const void* data, std::size_t bytes,
            TransportRequest& request) override {
    enqueue(peer, {port_, std::nullopt, std::string(header)}, data, bytes, request);
  }
  void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) override {
    begin(request);
    if (!connect(peer)) return end(request, kLost);
    receives_.push_back({tag, data, bytes, &request});
  }
  void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) override {
    begin(request);
    if (closed_) return end(request, kCanceled);
    fetches_.push_back({take_handle(handle), data, bytes, &request});
  }
  void discard(void* handle) override { take(*take_handle(handle)); }

  bool progress() override {
    if (closed_) return false;
    bool moved = put_on_the_wire();
    moved = end_fetches() || moved;
    moved = end_offers() || moved;
    moved = take_a_frame() || moved;
    moved = match() || moved;
    return find_lost() || moved;
  }

  bool may_sleep() override { return !closed_ && !has_work(); }
  void sleep(std::chrono::microseconds limit) override {
    std::unique_lock lock(network_->mutex);
    network_->changed.wait_for(lock, limit, [this] { return has_news(); });
  }

  bool is_connected(int peer) const override { return connected_.contains(peer); }
  bool is_lost(int peer) const override { return lost_.contains(peer); }
  void look_for_cut_links() override {}
  void close_to_programs() override {}

  void close(bool gently, std::chrono::milliseconds limit) override {
    if (closed_) return;
    const Deadline deadline = Deadline::after(limit);
    while (gently && (!outbox_.empty() || !offers_.empty()) && !deadline.expired()) {
      if (!progress()) sleep(std::chrono::milliseconds(1));
    }
    closed_ = true;
    {
      const std::lock_guard lock(network_->mutex);
      network_->ports[port_].open = false;
      for (const Offered& offered : offers_) offered.offer->withdrawn = true;
    }
    network_->changed.notify_all();
    for (const Outgoing& outgoing : outbox_) end(*outgoing.request, kCanceled);
    for (const Offered& offered : offers_) end(*offered.request, kCanceled);
    for (const Receive& receive : receives_) end(*receive.request, kCanceled);
    for (const Fetch& fetch : fetches_) end(*fetch.request, kCanceled);
  }

 private:
  struct Outgoing {
    int peer;
    Frame frame;
    const void* data;
    std::size_t bytes;
    TransportRequest* request;
  };
  struct Offered {
    int peer;
    std::shared_ptr<Offer> offer;
    TransportRequest* request;
  };
  struct Receive {
    std::uint64_t tag;
    void* data;
    std::size_t bytes;
    TransportRequest* request;
  };
  struct Fetch {
    std::shared_ptr<Offer> offer;
    void* data;
    std::size_t bytes;
    TransportRequest* request;
  };

  static void begin(TransportRequest& request) {
    request = TransportRequest();
    request.done = false;
  }
  static void end(TransportRequest& request, const Status& status = {}) {
    request.status = status;
    request.done = true;
  }
  static void write(const Receive& receive, const void* data, std::size_t bytes) {
    if (bytes != receive.bytes) {
      return end(*receive.request,
                 {ErrorCode::kMismatch, fmt::format("expected a message of {} bytes, found {}", receive.bytes, bytes)});
    }
    if (bytes > 0) std::memcpy(receive.data, data, bytes);
    end(*receive.request);
  }

  // False: there is no way to this peer, or none any more.
  bool connect(int peer) {
    if (closed_ || !ports_.contains(peer)) return false;
    connected_.insert(peer);
    return !lost_.contains(peer);
  }
  void enqueue(int peer, Frame frame, const void* data, std::size_t bytes, TransportRequest& request) {
    begin(request);
    if (!connect(peer)) return end(request, kLost);
    outbox_.push_back({peer, std::move(frame), data, bytes, &request});
  }

  bool put_on_the_wire() {
    if (outbox_.empty()) return false;
    Outgoing outgoing = std::move(outbox_.front());
    outbox_.pop_front();
    Frame& frame = outgoing.frame;
    const bool stays = !frame.tag && outgoing.bytes > kEagerBytes;
    if (stays) {
      frame.offer = std::make_shared<Offer>(Offer{outgoing.data, outgoing.bytes});
      offers_.push_back({outgoing.peer, frame.offer, outgoing.request});
    } else if (outgoing.bytes > 0) {
      frame.bytes.assign(static_cast<const char*>(outgoing.data), outgoing.bytes);
    }
    bool arrives = true;
    {
      const std::lock_guard lock(network_->mutex);
      Port& port = network_->ports[ports_.at(outgoing.peer)];
      arrives = !port.gone && !network_->ports[port_].gone;
      if (arrives && port.open) port.inbox.push_back(std::move(frame));
    }
    network_->changed.notify_all();
    if (!stays) end(*outgoing.request, arrives ? Status() : kLost);
    return true;
  }

  bool end_fetches() {
    if (fetches_.empty()) return false;
    const std::list<Fetch> fetches = std::exchange(fetches_, {});
    for (const Fetch& fetch : fetches) {
      const std::unique_lock lock(network_->mutex);
      if (fetch.offer->withdrawn) {
        end(*fetch.request, kLost);
      } else {
        write({0, fetch.data, fetch.bytes, fetch.request}, fetch.offer->data, fetch.offer->bytes);
      }
      fetch.offer->taken = true;
    }
    network_->changed.notify_all();
    return true;
  }

  bool end_offers() {
    const std::lock_guard lock(network_->mutex);
    return std::erase_if(offers_, [&](const Offered& offered) {
             const bool over = offered.offer->taken || lost_.contains(offered.peer);
             if (!over) return false;
             offered.offer->withdrawn = true;
             end(*offered.request, offered.offer->taken ? Status() : kLost);
             return true;
           }) > 0;
  }

  bool take_a_frame() {
    Frame frame;
    {
      const std::lock_guard lock(network_->mutex);
      const auto next = network_->next(port_);
      if (next == network_->ports[port_].inbox.end()) return false;
      frame = std::move(*next);
      network_->ports[port_].inbox.erase(next);
    }
    if (frame.tag) {
      arrived_.push_back(std::move(frame));
    } else {
      hand_over(frame);
    }
    return true;
  }

  void hand_over(Frame& frame) {
    const std::size_t bytes = frame.bytes.size();
    ActiveMessage message{std::move(frame.header), std::move(frame.bytes), bytes};
    if (frame.offer != nullptr) {
      handles_.push_back(frame.offer);
      message.bytes = frame.offer->bytes;
      message.handle = frame.offer.get();
    }
    if (!handler_(std::move(message)) && frame.offer != nullptr) discard(frame.offer.get());
  }
  std::shared_ptr<Offer> take_handle(void* handle) {
    for (auto offer = handles_.begin(); offer != handles_.end(); ++offer) {
      if (offer->get() != handle) continue;
      std::shared_ptr<Offer> taken = *offer;
      handles_.erase(offer);
      return taken;
    }
    throw std::logic_error("fetch() or discard() of an active message that is not there");
  }
  void take(Offer& offer) const {
    const std::lock_guard lock(network_->mutex);
    offer.taken = true;
    network_->changed.notify_all();
  }

  // By tag alone, as UCX does: callers put the sender's number into it.
  bool match() {
    bool matched = false;
    for (auto frame = arrived_.begin(); frame != arrived_.end();) {
      const auto receive =
          std::find_if(receives_.begin(), receives_.end(), [&](const Receive& one) { return one.tag == frame->tag; });
      if (receive == receives_.end()) {
        ++frame;
        continue;
      }
      write(*receive, frame->bytes.data(), frame->bytes.size());
      receives_.erase(receive);
      frame = arrived_.erase(frame);
      matched = true;
    }
    return matched;
  }

  bool find_lost() {
    bool found = false;
    const std::lock_guard lock(network_->mutex);
    for (const int peer : connected_) {
      if (network_->is_over(ports_.at(peer), port_)) found = lost_.insert(peer).second || found;
    }
    return found;
  }

  bool has_work() const {
    for (const Frame& frame : arrived_) {
      for (const Receive& receive : receives_) {
        if (receive.tag == frame.tag) return true;
      }
    }
    const std::lock_guard lock(network_->mutex);
    return !outbox_.empty() || !fetches_.empty() || has_news();
  }
  // Under the mutex.
  bool has_news() const {
    if (network_->next(port_) != network_->ports[port_].inbox.end()) return true;
    if (std::ranges::any_of(offers_, [](const Offered& offered) { return offered.offer->taken; })) return true;
    return std::ranges::any_of(
        connected_, [this](int peer) { return !lost_.contains(peer) && network_->is_over(ports_.at(peer), port_); });
  }

  const std::shared_ptr<FakeSwitch::Network> network_;
  const int port_;
  const ActiveMessageHandler handler_;
  bool closed_ = false;
  std::map<int, int> ports_;  // by peer
  std::set<int> connected_;
  std::set<int> lost_;
  std::list<Outgoing> outbox_;
  std::list<Offered> offers_;
  std::list<Receive> receives_;
  std::list<Fetch> fetches_;
  std::list<Frame> arrived_;  // tagged messages that no receive has asked for
  std::list<std::shared_ptr<Offer>> handles_;
};

}  // namespace

FakeSwitch::FakeSwitch() : network_(std::make_shared<Network>()) {}

std::unique_ptr<Transport> FakeSwitch::open(ActiveMessageHandler handler) const {
  const std::lock_guard lock(network_->mutex);
  network_->ports.emplace_back();
  return std::make_unique<FakeTransport>(network_, static_cast<int>(network_->ports.size()) - 1, std::move(handler));
}

void FakeSwitch::hold(const std::string& from, const std::string& to) const {
  const std::lock_guard lock(network_->mutex);
  network_->held.insert({std::stoi(from), std::stoi(to)});
}

void FakeSwitch::release(const std::string& from, const std::string& to) const {
  const std::lock_guard lock(network_->mutex);
  network_->held.erase({std::stoi(from), std::stoi(to)});
  network_->changed.notify_all();
}

void FakeSwitch::shuffle(std::uint64_t seed) const {
  const std::lock_guard lock(network_->mutex);
  network_->random.emplace(seed);
}

void FakeSwitch::lose(const std::string& address) const {
  const int lost = std::stoi(address);
  const std::lock_guard lock(network_->mutex);
  network_->ports[lost].open = false;
  network_->ports[lost].gone = true;
  network_->ports[lost].inbox.clear();
  for (Port& port : network_->ports) port.inbox.remove_if([&](const Frame& frame) { return frame.from == lost; });
  network_->changed.notify_all();
}

}  // namespace lockstep::test
