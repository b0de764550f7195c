// Sending and receiving: timeouts, batches, and backends of other libraries.
#include <gtest/gtest.h>

#include <array>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/ranks.h"
#include "lockstep/c10d/backend_capabilities.h"

namespace lockstep::test {
namespace {

using Kind = PointToPoint::Kind;
using std::chrono::milliseconds;

// In a group of its own, since a timeout breaks the group. Rank 1 never sends.
void expect_timeout(int rank, const std::function<void(const ProcessGroup&)>& receive) {
  const ProcessGroup group = new_group({0, 1});
  if (rank == 0) receive(group);
  barrier();
}

void check_timeouts(int rank) {
  const torch::Tensor tensor = torch::zeros({3});
  const auto expect_error_of = [](const Work& work) {
    expect_error(ErrorCode::kTimeout, {"rank 0, group", "recv"}, [&] { work->wait(); });
  };
  for (const int source : {1, kAnySource}) {
    expect_timeout(rank, [&](const ProcessGroup& group) {
      expect_error_of(irecv(tensor, source, {.group = group, .timeout = milliseconds(300)}));
    });
  }
  expect_timeout(rank, [&](const ProcessGroup& group) {
    const auto future = irecv(tensor, 1, {.group = group, .timeout = milliseconds(300)})->getFuture();
    future->wait();
    ASSERT_TRUE(future->hasError());
    EXPECT_NE(future->tryRetrieveErrorMessage().find("recv"), std::string::npos) << future->tryRetrieveErrorMessage();
  });
  expect_timeout(rank, [&](const ProcessGroup& group) {
    const PointToPointOptions options{.tag = 1, .group = group, .timeout = milliseconds(300)};
    const std::vector<PointToPoint> list{{Kind::kReceive, tensor, 1, options}, {Kind::kReceive, tensor, 1, options}};
    for (const Work& work : batch_isend_irecv(list)) expect_error_of(work);
  });
}

TEST(PointToPointMulti, TimeoutsOfStartedMessages) {
  run_world(2, check_timeouts);
}

// Many messages and receives at once, of sizes that go inside the ring, through an arena at once and in chunks. Over
// two machines ranks 0 and 2 share one.
TEST(PointToPointMulti, ManyUnderWayKeepTheirOrder) {
  run_world(3, [](int rank) {
    constexpr std::array<std::int64_t, 4> kSizes{1, 1000, 6000, 100000};
    constexpr int kMessages = 400;
    for (int round = 0; round < 3; ++round) {
      std::vector<torch::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < kMessages && rank != 1; ++i) {
        const std::int64_t size = kSizes[static_cast<std::size_t>(i * 7 + i / 5) % kSizes.size()];
        tensors.push_back(torch::full({size}, rank == 0 ? i : -1, torch::kFloat));
        works.push_back(rank == 0 ? isend(tensors.back(), 2) : irecv(tensors.back(), i % 3 == 0 ? kAnySource : 0));
      }
      for (const Work& work : works) work->wait();
      for (std::size_t i = 0; i < tensors.size(); ++i)
        ASSERT_TRUE((tensors[i] == static_cast<float>(i)).all().item<bool>()) << "message " << i << ", round " << round;
      barrier();
    }
  });
}

// A bad entry at the end: no receive was started that could take a later message.
void check_bad_batches(int rank) {
  const int other = 1 - rank;
  const torch::Tensor received = torch::zeros({4});
  const torch::Tensor mine = torch::full({4}, rank + 1, torch::kFloat);
  const auto expect_refused = [&](const PointToPoint& bad, const std::string& piece) {
    const std::vector<PointToPoint> list{
        {Kind::kReceive, torch::zeros({4}), other}, {Kind::kSend, torch::zeros({4}), other}, bad};
    expect_error(ErrorCode::kInvalidArgument, {piece}, [&] { batch_isend_irecv(list); });
  };
  expect_refused({Kind::kSend, torch::Tensor(), other}, "undefined");
  expect_refused({Kind::kSend, mine, 2}, "0 to 1, found 2");
  expect_refused({Kind::kReceive, received, other, {.tag = -1}}, "tag");
  expect_refused({Kind::kReceive, received, other, {.timeout = milliseconds(0)}}, "timeout");
  expect_refused({Kind::kReceive, torch::zeros({1}).expand({4}), other}, "share memory");
  expect_refused({Kind::kSend, mine.to_sparse(), other}, "dense");
  const std::vector<PointToPoint> good{{Kind::kSend, mine, other}, {Kind::kReceive, received, other}};
  for (const Work& work : batch_isend_irecv(good)) work->wait();
  expect_equal(received, torch::full({4}, other + 1, torch::kFloat), "after bad batches");
}

TEST(PointToPointMulti, BatchIsCheckedBeforeItStarts) {
  run_world(2, check_bad_batches);
}

class DoneWork : public c10d::Work {
 public:
  DoneWork() { finish(); }
};

// Records the calls of a backend for another kind of device. Like NCCL, it makes one operation of several messages, and
// has no monitored barrier.
class FakeBackend : public c10d::Backend, public BackendCapabilities {
 public:
  explicit FakeBackend(std::string name) : Backend(0, 1), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }  // NOLINT(readability-const-return-type)
  bool has_monitored_barrier() const override { return false; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { calls += '('; }
  Work endCoalescing() override {
    calls += ')';
    return c10::make_intrusive<DoneWork>();
  }
  Work send(std::vector<at::Tensor>&, int, int) override {
    calls += 's';
    return c10::make_intrusive<DoneWork>();
  }
  Work recv(std::vector<at::Tensor>&, int, int) override {
    calls += 'r';
    if (fails) throw std::runtime_error("no memory");
    return c10::make_intrusive<DoneWork>();
  }

  std::string calls;
  bool fails = false;

 private:
  const std::string name_;
};

struct FakeGroup {
  explicit FakeGroup(const std::string& name, c10::DeviceType device)
      : backend(c10::make_intrusive<FakeBackend>(name)), group(c10::make_intrusive<c10d::ProcessGroup>(0, 1)) {
    group->setBackend(device, c10d::ProcessGroup::BackendType::NCCL, backend);
  }
  c10::intrusive_ptr<FakeBackend> backend;
  ProcessGroup group;
};

// With two groups on another kind of device, and the world.
TEST(BatchIsendIrecv, GroupsCallsPerBackendThatCan) {
  const ProcessGroupGuard world("lockstep");
  const FakeGroup a("fake", c10::kMeta);
  const FakeGroup b("fake", c10::kMeta);
  const torch::Tensor far = torch::zeros({2}, torch::kMeta);
  const torch::Tensor near = torch::zeros({2});
  const std::vector<PointToPoint> list{{Kind::kSend, far, 0, {.group = a.group}},
                                       {Kind::kSend, torch::ones({2}), 0},
                                       {Kind::kSend, far, 0, {.group = b.group}},
                                       {Kind::kReceive, far, 0, {.group = a.group}},
                                       {Kind::kReceive, near, 0}};
  const std::vector<Work> works = batch_isend_irecv(list);
  for (const Work& work : works) work->wait();
  EXPECT_EQ(a.backend->calls, "(sr)");
  EXPECT_EQ(b.backend->calls, "(s)");
  EXPECT_EQ(works[0], works[3]);
  EXPECT_NE(works[0], works[2]);
  expect_equal(near, torch::ones({2}), "own backend");

  // Coalescing ends also when a call fails, and does not start when an entry is wrong.
  a.backend->fails = true;
  a.backend->calls.clear();
  EXPECT_THROW(batch_isend_irecv(list), std::runtime_error);
  EXPECT_EQ(a.backend->calls, "(sr)");
  std::vector<PointToPoint> wrong = list;
  wrong.back().options.tag = -1;
  expect_error(ErrorCode::kInvalidArgument, {"tag"}, [&] { batch_isend_irecv(wrong); });
  EXPECT_EQ(a.backend->calls, "(sr)");
}

TEST(MonitoredBarrier, TakesTheBackendThatHasOne) {
  const ProcessGroupGuard world("cuda:lockstep");
  barrier();
  monitored_barrier();
  EXPECT_EQ(get_rank(split_group(-1)), -1);
  const FakeGroup gpu("nccl", c10::kCUDA);
  expect_error(ErrorCode::kUnsupported, {"monitored_barrier", "nccl", "cpu:lockstep"},
               [&] { monitored_barrier({.group = gpu.group}); });
  gpu.group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, default_group()->getBackend(c10::kCUDA));
  monitored_barrier({.group = gpu.group});
  barrier({.group = gpu.group});
}

}  // namespace
}  // namespace lockstep::test
