// Works that nobody keeps: operations that were started end nevertheless.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "c10d/cases.h"
#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

enum class Form { kBlocking, kWait, kPoll, kFuture };
constexpr Form kForms[] = {Form::kBlocking, Form::kWait, Form::kPoll, Form::kFuture};

void pass_barrier(Form form) {
  if (form == Form::kBlocking) return barrier();
  const Work work = barrier_async();
  switch (form) {
    case Form::kFuture: work->getFuture()->waitAndThrow(); break;
    case Form::kPoll:
      while (!work->isCompleted()) std::this_thread::yield();
      EXPECT_TRUE(work->isSuccess());
      break;
    default: work->wait();
  }
}

// One call of every collective, whose work is dropped; too large to be sent inline.
struct Calls {
  Calls(const Case& at) : c(at) {  // NOLINT(google-explicit-constructor)
    const auto inputs = values_of_all(c);
    for (int i = 0; i < 16; ++i) sums.push_back(make_like(c, inputs[c.rank] + i));
    for (const torch::Tensor& sum : sums) all_reduce_async(sum);
    all_reduce_coalesced_async(pair = {make_like(c, inputs[c.rank]), torch::ones({3})});
    broadcast_async(told = make_like(c, inputs[c.rank]), c.world - 1);
    reduce_async(reduced = make_like(c, inputs[c.rank]), 0);
    for (int rank = 0; rank < c.world; ++rank) parts.push_back(make_zeros(c, c.size));
    all_gather_async(parts, make_like(c, inputs[c.rank]));
    scatter_async(share = make_zeros(c, c.size), c.rank == 0 ? inputs : std::vector<torch::Tensor>(), 0);
    reduce_scatter_async(scattered = make_zeros(c, c.size), inputs);
    all_to_all_async(swapped = {make_zeros(c, c.size), make_zeros(c, c.size)}, {inputs[0], inputs[1]});
  }

  void check() const {
    const auto inputs = values_of_all(c);
    const torch::Tensor sum = reduce_locally(inputs, c10d::ReduceOp::SUM);
    for (int i = 0; i < 16; ++i) expect_equal(sums[i], sum + c.world * i, c10::str("all_reduce ", i, ", ", c.text()));
    expect_equal(pair[0], sum, "all_reduce_coalesced " + c.text());
    expect_equal(pair[1], torch::full({3}, static_cast<float>(c.world)), "all_reduce_coalesced " + c.text());
    expect_equal(told, inputs.back(), "broadcast " + c.text());
    expect_equal(reduced, c.rank == 0 ? sum : inputs[c.rank], "reduce " + c.text());
    for (int rank = 0; rank < c.world; ++rank) expect_equal(parts[rank], inputs[rank], "all_gather " + c.text());
    expect_equal(share, inputs[c.rank], "scatter " + c.text());
    expect_equal(scattered, inputs[c.rank] * c.world, "reduce_scatter " + c.text());
    for (int rank = 0; rank < c.world; ++rank) expect_equal(swapped[rank], inputs[c.rank], "all_to_all " + c.text());
  }

  Case c;
  std::vector<torch::Tensor> sums, pair, parts, swapped;
  torch::Tensor told, reduced, share, scattered;
};

TEST(DroppedWorksMulti, AreDoneWhenABarrierIs) {
  run_world(2, [](int rank) {
    torch::set_num_threads(1);
    for (const Form form : kForms) {
      for (const Memory memory : {Memory::kPlain, Memory::kArena, Memory::kStrided}) {
        const Calls calls({torch::kFloat, 40'000, memory, true, rank, 2});
        pass_barrier(form);
        calls.check();
      }
    }
    // With barriers between them that nobody waits for.
    const Calls first({torch::kFloat, 3, Memory::kStrided, true, rank, 2});
    for (int i = 0; i < 20; ++i) barrier_async();
    const Calls second({torch::kFloat, 40'000, Memory::kStrided, true, rank, 2});
    barrier_async();
    pass_barrier(Form::kWait);
    first.check();
    second.check();
  });
}

TEST(DroppedWorksMulti, MessagesArriveAllTheSame) {
  run_world(2, [](int rank) {
    const auto text = [](float value, int size) { return torch::full({size, 2}, value).select(1, 0); };
    for (const int size : {3, 50'000}) {
      const torch::Tensor received = text(0, size);
      const torch::Tensor batched = text(0, size);
      const torch::Tensor last = text(0, size);
      if (rank == 0) {
        irecv(received, 1);
        batch_isend_irecv(std::vector<PointToPoint>{{PointToPoint::Kind::kReceive, batched, 1}});
        recv(last, 1);  // equal tags keep their order
      } else {
        isend(text(1, size), 0);
        batch_isend_irecv(std::vector<PointToPoint>{{PointToPoint::Kind::kSend, text(2, size), 0}});
        send(text(3, size), 0);
      }
      barrier();
      if (rank == 1) continue;
      expect_equal(received, text(1, size), "irecv");
      expect_equal(batched, text(2, size), "batch");
      expect_equal(last, text(3, size), "recv");
    }
  });
}

TEST(DroppedWorksMulti, AreLetGoOfAsTheyEnd) {
  run_world(2, [](int) {
    constexpr int kCalls = 2000;
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors;
    const auto alive = [&] {
      return std::count_if(tensors.begin(), tensors.end(), [](const auto& tensor) { return !tensor.expired(); });
    };
    for (int i = 0; i < kCalls; ++i) {
      const torch::Tensor tensor = torch::ones({5000, 2}).select(1, 0);
      all_reduce_async(tensor);
      tensors.emplace_back(tensor.getIntrusivePtr());
      if (i % 100 == 0) {
        EXPECT_LT(alive(), 100) << i;
      }
    }
    barrier();
    EXPECT_EQ(alive(), 0);
  });
}

TEST(DroppedWorksMulti, TheirErrorsAreTold) {
  run_world(2, [](int rank) {
    for (const Form form : {Form::kBlocking, Form::kWait, Form::kFuture}) {
      all_reduce_async(torch::ones({3 + rank}));
      expect_error(ErrorCode::kMismatch, {"barrier", "an earlier operation failed", "all_reduce of 4 float32"},
                   [&] { pass_barrier(form); });
      barrier();
    }
    // The error of a work that is kept belongs to its owner, not to the barrier.
    const Work work = all_reduce_async(torch::ones({3 + rank}));
    barrier();
    expect_error(ErrorCode::kMismatch, {"all_reduce of 4 float32"}, [&] { work->wait(); });
    const ProcessGroup group = new_group({0, 1});
    all_reduce_async(torch::ones({3 + rank}), {.group = group});
    testing::internal::CaptureStderr();
    destroy_process_group(group);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("all_reduce #1 failed, and nobody waited for it"), std::string::npos) << log;
    barrier();
  });
}

TEST(DroppedWorksMulti, AreDoneWhenTheGroupIsLeft) {
  std::vector<torch::Tensor> tensors;
  run_world(2, [&tensors](int rank) {
    // Longer than a leaving rank waits for other ranks that take part already.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (const int size : {3, 40'000}) {
      tensors.push_back(torch::full({size}, static_cast<float>(rank + 1)));
      tensors.push_back(torch::full({size, 2}, static_cast<float>(rank + 1)).select(1, 0));
    }
    for (const torch::Tensor& tensor : tensors) all_reduce_async(tensor);
    destroy_process_group();
    for (const torch::Tensor& tensor : tensors) expect_equal(tensor, torch::full_like(tensor, 3), "after leaving");
  });
}

}  // namespace
}  // namespace lockstep::test
