// The networks that every promise of net/transport.h is tried on, and a fixture with a few endpoints of one.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "net/transport.h"
#include "net/ucx/ucx_transport.h"
#include "net/ucx/ucx_worker.h"
#include "support/fake_transport.h"
#include "support/process.h"
#include "support/process_ranks.h"

namespace lockstep::test {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kLong = std::chrono::seconds(300);  // longer than a test may take

class Network {
 public:
  virtual ~Network() = default;
  virtual std::unique_ptr<comm::Transport> open(comm::ActiveMessageHandler handler) const = 0;
};

class FakeNetwork final : public Network {
 public:
  std::unique_ptr<comm::Transport> open(comm::ActiveMessageHandler handler) const override {
    return switch_.open(std::move(handler));
  }
  const FakeSwitch& faults() const { return switch_; }

 private:
  FakeSwitch switch_;
};

// Each endpoint has a worker of its own, as in processes of different machines.
class UcxNetwork final : public Network {
 public:
  std::unique_ptr<comm::Transport> open(comm::ActiveMessageHandler handler) const override {
    auto worker = comm::UcxWorker::make(*comm::UcxLibrary::get().value(), loopback(), {{}, /*loopback=*/true});
    EXPECT_TRUE(worker.ok()) << worker.status().message();
    return comm::open_channel(std::move(worker).value(), std::move(handler), "UCX on the loopback interface").value();
  }
  static comm::NetworkInterface loopback() { return comm::interface_with_address("127.0.0.1").value(); }
};

// The endpoints share the worker of this process, as the groups of a process do.
class UcxOfOneProcess final : public Network {
 public:
  std::unique_ptr<comm::Transport> open(comm::ActiveMessageHandler handler) const override {
    auto opened = comm::open_ucx(UcxNetwork::loopback(), {{}, /*loopback=*/true}, std::move(handler));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(opened).value();
  }
};

struct NetworkKind {
  const char* name;
  std::unique_ptr<Network> (*make)();

  friend std::ostream& operator<<(std::ostream& out, const NetworkKind& kind) { return out << kind.name; }
};

inline auto all_networks() {
  return testing::Values(
      NetworkKind{"Fake", []() -> std::unique_ptr<Network> { return std::make_unique<FakeNetwork>(); }},
      NetworkKind{"Ucx", []() -> std::unique_ptr<Network> { return std::make_unique<UcxNetwork>(); }},
      NetworkKind{"UcxOfOneProcess", []() -> std::unique_ptr<Network> { return std::make_unique<UcxOfOneProcess>(); }});
}

inline std::string name_of_network(const testing::TestParamInfo<NetworkKind>& info) {
  return info.param.name;
}

// One member of the network. Its number is what the others call it by.
class Endpoint {
 public:
  struct Arrived {
    std::string header;
    std::string data;  // of a small one
    std::size_t bytes;
    void* handle;
  };

  explicit Endpoint(const Network& network)
      : transport_(network.open([this](comm::ActiveMessage message) { return take(std::move(message)); })) {}

  comm::Transport* operator->() const { return transport_.get(); }
  std::deque<Arrived>& arrived() { return arrived_; }
  // Active messages are for somebody else.
  void refuse_all() { refuses_ = true; }
  int refused() const { return refused_; }
  void destroy() { transport_.reset(); }
  bool progress() const { return transport_ != nullptr && transport_->progress(); }

 private:
  bool take(comm::ActiveMessage message) {
    if (refuses_) {
      ++refused_;
      return false;
    }
    arrived_.push_back({std::move(message.header), std::move(message.data), message.bytes, message.handle});
    return true;
  }

  bool refuses_ = false;
  int refused_ = 0;
  std::deque<Arrived> arrived_;
  std::unique_ptr<comm::Transport> transport_;
};

// Three endpoints that know one another, all of them in the test's own thread. Afterwards nothing is left of them.
class OverEachNetwork : public testing::TestWithParam<NetworkKind> {
 protected:
  static constexpr int kEndpoints = 3;

  void SetUp() override {
    {  // a library keeps something of its first use, for the life of the process
      const auto network = GetParam().make();
      const Endpoint first(*network);
    }
    std::thread([] {}).join();  // with the first, TSan starts one of its own
    before_ = Leftovers::now();
    threads_before_ = count_threads();
    network_ = GetParam().make();
    for (int i = 0; i < kEndpoints; ++i) endpoints_.push_back(std::make_unique<Endpoint>(*network_));
    for (int i = 0; i < kEndpoints; ++i) {
      for (int other = 0; other < kEndpoints; ++other) {
        if (other != i) at(i)->introduce(other, at(other)->address());
      }
    }
  }

  void TearDown() override {
    endpoints_.clear();
    network_.reset();
    expect_nothing_left(before_);
    EXPECT_TRUE(wait_for([&] { return count_threads() == threads_before_; })) << "threads are left";
  }

  // As if another test began: for a case in several ways.
  void start_again() {
    TearDown();
    SetUp();
  }

  Endpoint& at(int number) { return *endpoints_[number]; }

  bool progress() {
    bool moved = false;
    for (const auto& endpoint : endpoints_) moved = endpoint->progress() || moved;
    return moved;
  }
  // Moves everything until that is so.
  template <typename Condition>
  bool until(Condition condition) {
    const Deadline deadline = Deadline::after(kPatience);
    while (!condition()) {
      if (deadline.expired()) return false;
      progress();
    }
    return true;
  }
  bool finish(const comm::TransportRequest& request) {
    return until([&] { return request.done; });
  }
  // Gives what is under way ample chance to arrive.
  void progress_for_a_while() {
    for (int i = 0; i < 2000; ++i) progress();
  }
  // Something has passed in both directions.
  void connect(int a, int b) {
    constexpr std::uint64_t kTag = 0xffff'0000;
    comm::TransportRequest requests[4];
    char byte[2] = {};
    at(a)->receive(b, kTag + b, &byte[0], 1, requests[0]);
    at(b)->receive(a, kTag + a, &byte[1], 1, requests[1]);
    at(a)->send(b, kTag + a, "a", 1, requests[2]);
    at(b)->send(a, kTag + b, "b", 1, requests[3]);
    for (const comm::TransportRequest& request : requests) {
      ASSERT_TRUE(finish(request) && request.status.ok()) << request.status.message();
    }
  }

 private:
  static std::ptrdiff_t count_threads() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  }

  Leftovers before_;
  std::ptrdiff_t threads_before_ = 0;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

// Bytes that differ from those of other seeds and other places.
inline std::string pattern(std::size_t bytes, std::uint64_t seed) {
  std::string text(bytes, '\0');
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15 + 1;
  for (char& byte : text) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(state >> 56);
  }
  return text;
}

// Where a message goes, with bytes behind it that must stay.
class Place {
 public:
  explicit Place(std::size_t bytes) : bytes_(bytes), memory_(bytes + kGuard, '\x5a') {}
  void* data() { return memory_.data(); }
  std::size_t bytes() const { return bytes_; }
  std::string text() const { return memory_.substr(0, bytes_); }
  bool intact() const { return memory_.substr(bytes_) == std::string(kGuard, '\x5a'); }
  bool untouched() const { return memory_ == std::string(bytes_ + kGuard, '\x5a'); }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t bytes_;
  std::string memory_;
};

}  // namespace lockstep::test
