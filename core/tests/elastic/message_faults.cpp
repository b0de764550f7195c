#include "elastic/message_faults.h"

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "net/transport.h"
#include "net/ucx/ucx_transport.h"

namespace lockstep::test {
namespace {

using comm::Transport;
using comm::TransportRequest;
using Kind = MessageFault::Kind;
using Clock = std::chrono::steady_clock;

struct Armed {
  MessageFault fault;
  std::function<void(const std::string&)> happened;
};
std::mutex armed_mutex;
std::vector<Armed> armed;

// What happens to the next message of this process. A message of no bytes cannot be truncated.
std::optional<MessageFault> next_fault(bool is_control, int peer, std::size_t bytes) {
  const std::lock_guard lock(armed_mutex);
  std::optional<MessageFault> found;
  for (auto one = armed.begin(); one != armed.end();) {
    const bool concerns = one->fault.is_control == is_control && (one->fault.kind != Kind::kTruncate || bytes > 1);
    if (!concerns || one->fault.after-- > 0 || found) {
      ++one;
      continue;
    }
    found = one->fault;
    const std::string what = found->kind == Kind::kDelay  ? "delayed"
                             : found->kind == Kind::kDrop ? "dropped"
                                                          : "truncated";
    one->happened(what + (is_control ? " control to " : " data to ") + std::to_string(peer));
    one = armed.erase(one);
  }
  return found;
}

class FaultyTransport final : public Transport {
 public:
  explicit FaultyTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  ~FaultyTransport() override { FaultyTransport::close(/*gently=*/false, std::chrono::milliseconds(0)); }

  void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) override {
    const std::optional<MessageFault> fault = next_fault(/*is_control=*/false, peer, bytes);
    const std::size_t sent = is(fault, Kind::kTruncate) ? bytes / 2 : bytes;
    pass(peer, fault, request,
         [this, peer, tag, data, sent, &request] { inner_->send(peer, tag, data, sent, request); });
  }
  void post(int peer, std::string_view header, const void* data, std::size_t bytes,
            TransportRequest& request) override {
    const std::optional<MessageFault> fault = next_fault(/*is_control=*/true, peer, header.size() + bytes);
    const bool cut = is(fault, Kind::kTruncate);
    const std::size_t sent = cut ? bytes / 2 : bytes;
    const std::string head(header.substr(0, cut && bytes < 2 ? header.size() / 2 : header.size()));
    pass(peer, fault, request,
         [this, peer, head, data, sent, &request] { inner_->post(peer, head, data, sent, request); });
  }

  bool progress() override {
    bool moved = false;
    for (auto& [peer, held] : held_) {
      for (; !held.empty() && held.front().until <= Clock::now(); held.pop_front(), moved = true) held.front().send();
    }
    return inner_->progress() || moved;
  }
  bool may_sleep() override { return !holds() && inner_->may_sleep(); }
  void close(bool gently, std::chrono::milliseconds limit) override {
    for (auto& [peer, held] : held_) {
      for (; !held.empty(); held.pop_front()) held.front().send();
    }
    inner_->close(gently, limit);
  }

  std::string address() const override { return inner_->address(); }
  std::string describe() const override { return inner_->describe(); }
  void introduce(int peer, std::string address) override { inner_->introduce(peer, std::move(address)); }
  void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) override {
    inner_->receive(peer, tag, data, bytes, request);
  }
  void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) override {
    inner_->fetch(handle, data, bytes, request);
  }
  void discard(void* handle) override { inner_->discard(handle); }
  void sleep(std::chrono::microseconds limit) override { inner_->sleep(limit); }
  bool is_connected(int peer) const override { return inner_->is_connected(peer); }
  bool is_lost(int peer) const override { return inner_->is_lost(peer); }
  void look_for_cut_links() override { inner_->look_for_cut_links(); }
  void close_to_programs() override { inner_->close_to_programs(); }

 private:
  struct Held {
    Clock::time_point until;
    std::function<void()> send;
  };

  static bool is(const std::optional<MessageFault>& fault, Kind kind) { return fault && fault->kind == kind; }
  bool holds() const {
    for (const auto& [peer, held] : held_) {
      if (!held.empty()) return true;
    }
    return false;
  }

  // Messages to one rank keep their order.
  void pass(int peer, const std::optional<MessageFault>& fault, TransportRequest& request, std::function<void()> send) {
    request = TransportRequest();
    if (is(fault, Kind::kDrop)) return;  // as if it had left
    std::deque<Held>& held = held_[peer];
    if (!is(fault, Kind::kDelay) && held.empty()) return send();
    request.done = false;
    held.push_back({is(fault, Kind::kDelay) ? Clock::now() + fault->delay : Clock::time_point(), std::move(send)});
  }

  const std::unique_ptr<Transport> inner_;
  std::map<int, std::deque<Held>> held_;
};

}  // namespace

void arm(const MessageFault& fault, std::function<void(const std::string&)> happened) {
  const std::lock_guard lock(armed_mutex);
  armed.push_back({fault, std::move(happened)});
}

void disarm() {
  const std::lock_guard lock(armed_mutex);
  armed.clear();
}

}  // namespace lockstep::test

namespace lockstep::comm {

// The names that `ld --wrap` gives to open_ucx.
#define LOCKSTEP_OPEN_UCX \
  "_ZN8lockstep4comm8open_ucxERKNS0_16NetworkInterfaceERKNS0_8AdmittedESt8functionIFbNS0_13ActiveMessageEEE"
Result<std::unique_ptr<Transport>> open_real_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                                 ActiveMessageHandler handler) asm("__real_" LOCKSTEP_OPEN_UCX);
Result<std::unique_ptr<Transport>> open_faulty_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                                   ActiveMessageHandler handler) asm("__wrap_" LOCKSTEP_OPEN_UCX);

Result<std::unique_ptr<Transport>> open_faulty_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                                   ActiveMessageHandler handler) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto transport, open_real_ucx(interface, admitted, std::move(handler)));
  return std::unique_ptr<Transport>(std::make_unique<test::FaultyTransport>(std::move(transport)));
}

}  // namespace lockstep::comm
