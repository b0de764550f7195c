// Futures whose callbacks wait, start operations, leave the group and throw.
#include <gtest/gtest.h>

#include <future>

#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Done = c10::ivalue::Future;

Future start(const torch::Tensor& tensor, const ProcessGroup& group = nullptr) {
  return all_reduce_async(tensor, {.group = group})->getFuture();
}

// The future of a message that arrives once both ranks have called release(), when callbacks are there.
Future expect_message(int rank, const ProcessGroup& group) {
  return irecv(torch::ones({1}), 1 - rank, {.tag = 2, .group = group})->getFuture();
}
void release(int rank, const ProcessGroup& group) {
  barrier();
  send(torch::ones({1}), 1 - rank, {.tag = 2, .group = group});
}

// The callback starts the next operation and waits for it, and so on.
float nest(int depth, const ProcessGroup& group) {
  const Future future = start(torch::ones({1000}), group)
                            ->then(
                                [depth, group](Done& done) -> c10::IValue {
                                  const float sum = done.value().toTensorVector().front()[0].item<float>();
                                  return depth == 0 ? sum : sum + nest(depth - 1, group);
                                },
                                c10::FloatType::get());
  future->waitAndThrow();
  return static_cast<float>(future->value().toDouble());
}

TEST(FuturesMulti, CallbacksOfAnyDepthMayWait) {
  run_world(2, [](int) {
    for (const int depth : {0, 1, 10}) EXPECT_EQ(nest(depth, nullptr), 2.0F * static_cast<float>(depth + 1));
    // From several threads, with a group each: within a group, ranks must agree on the order of operations.
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(new_group({0, 1}));
    std::vector<std::thread> threads;
    for (const ProcessGroup& group : groups) threads.emplace_back([group] { EXPECT_EQ(nest(5, group), 12.0F); });
    for (std::thread& thread : threads) thread.join();
    barrier();
  });
}

// In either order of completion.
TEST(FuturesMulti, CallbacksMayWaitForWhatIsUnderWay) {
  run_world(2, [](int rank) {
    constexpr int kWorks = 6;
    const ProcessGroup other = new_group({0, 1});
    std::vector<torch::Tensor> tensors;
    std::vector<Work> works;
    std::vector<Future> futures;
    for (int i = 0; i < kWorks; ++i) {
      tensors.push_back(torch::ones({20'000, 2}).select(1, 0));
      works.push_back(all_reduce_async(tensors.back(), {.group = i % 2 == 0 ? nullptr : other}));
      if (rank == 0) futures.push_back(works.back()->getFuture());
    }
    std::vector<Future> called;
    for (int i = 0; i < static_cast<int>(futures.size()); ++i) {
      called.push_back(futures[i]->then(
          [&futures, &works, i](Done&) -> c10::IValue {
            futures[kWorks - 1 - i]->waitAndThrow();
            works[(i + 1) % kWorks]->wait();
            return true;
          },
          c10::BoolType::get()));
    }
    for (const Future& future : called) future->waitAndThrow();
    for (const Work& work : works) work->wait();
    for (const torch::Tensor& tensor : tensors) expect_equal(tensor, torch::full({20'000}, 2.0F), "sum");
  });
}

TEST(FuturesMulti, LeavingEndsCallbacksThatWait) {
  run_world(2, [](int rank) {
    for (const bool whole_world : {false, true}) {
      const ProcessGroup first = new_group({0, 1});
      const ProcessGroup second = new_group({0, 1});
      // A message that never comes, in this group and in another.
      const Future never = irecv(torch::ones({1}), 1 - rank, {.tag = 1, .group = first})->getFuture();
      const Future nor_this = irecv(torch::ones({1}), 1 - rank, {.tag = 1, .group = second})->getFuture();
      std::promise<void> inside;
      std::atomic<int> errors = 0;
      const auto wait_for = [&errors](const Future& future) {
        future->wait();
        if (future->hasError()) ++errors;
      };
      expect_message(rank, first)->addCallback([&](Done&) {
        inside.set_value();
        wait_for(never);
        if (whole_world) wait_for(nor_this);
      });
      release(rank, first);
      inside.get_future().wait();
      barrier();
      if (whole_world) {
        destroy_process_group();
        EXPECT_EQ(errors, 2);
      } else {
        destroy_process_group(first);
        EXPECT_EQ(errors, 1);
        destroy_process_group(second);
        barrier();
      }
    }
  });
}

TEST(FuturesMulti, AbortsAndTimeoutsReachCallbacksThatWait) {
  run_world(2, [](int rank) {
    const ProcessGroup aborted = new_group({0, 1});
    const Future never = irecv(torch::ones({1}), 1 - rank, {.group = aborted})->getFuture();
    const Future ended = start(torch::ones({1}), aborted)
                             ->then(
                                 [&](Done&) -> c10::IValue {
                                   abort_process_group("a callback wants so", aborted);
                                   never->waitAndThrow();
                                   return true;
                                 },
                                 c10::BoolType::get());
    expect_error(ErrorCode::kAborted, {"a callback wants so"}, [&] { ended->waitAndThrow(); });
    barrier();

    const ProcessGroup late = new_group({0, 1});
    const Future timed_out =
        start(torch::ones({1}), late)
            ->then(
                [&](Done&) -> c10::IValue {
                  irecv(torch::ones({1}), 1 - rank, {.group = late, .timeout = std::chrono::milliseconds(200)})
                      ->getFuture()
                      ->waitAndThrow();
                  return true;
                },
                c10::BoolType::get());
    expect_error(ErrorCode::kTimeout, {"recv from rank"}, [&] { timed_out->waitAndThrow(); });
    barrier();
  });
}

TEST(FuturesMulti, ACallbackThatThrowsHarmsNobody) {
  run_world(2, [](int rank) {
    testing::internal::CaptureStderr();
    const Future first = expect_message(rank, nullptr);
    first->addCallback([](Done&) { throw std::runtime_error("no such column"); });
    release(rank, nullptr);
    first->wait();
    const Future second = start(torch::ones({3}));
    second->waitAndThrow();
    barrier();
    destroy_process_group();  // after the callbacks
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("no such column"), std::string::npos) << log;
  });
}

}  // namespace
}  // namespace lockstep::test
