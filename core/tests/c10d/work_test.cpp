// Asynchronous operations as LibTorch sees them.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "c10d/ranks.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep::test {
namespace {

void check_future_of_finished_work() {
  const torch::Tensor tensor = torch::ones({5});
  const Work work = all_reduce_async(tensor);
  work->wait();
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
  const auto future = work->getFuture();
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensorVector().front().is_same(tensor));
  EXPECT_TRUE(work->result().front().is_same(tensor));
}

// Nobody waits for the work: its future becomes ready by itself.
void check_future_of_running_work(int world) {
  std::vector<torch::Tensor> tensors;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (int i = 0; i < 5; ++i) {
    tensors.push_back(torch::ones({1000, 2}).select(1, 0));
    futures.push_back(all_reduce_async(tensors.back())->getFuture());
  }
  for (const auto& future : futures) future->wait();
  for (const torch::Tensor& tensor : tensors) expect_equal(tensor, torch::full({1000}, world, torch::kFloat), "future");
}

void check_callback(int world) {
  const torch::Tensor tensor = torch::ones({3});
  const auto doubled = all_reduce_async(tensor)->getFuture()->then(
      [](c10::ivalue::Future& done) { return done.value().toTensorVector().front() * 2; }, c10::TensorType::get());
  doubled->wait();
  EXPECT_EQ(doubled->value().toTensor()[0].item<float>(), 2.0F * static_cast<float>(world));
}

// More operations under way than the engine holds at once; tested instead of waited for.
void check_many_at_once(int world) {
  std::vector<torch::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back(torch::full({i}, i, torch::kLong));
    works.push_back(all_reduce_async(tensors.back()));
  }
  for (const Work& work : works) {
    while (!work->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(work->isSuccess());
  }
  for (int i = 0; i < 100; ++i)
    expect_equal(tensors[i], torch::full({i}, i * world, torch::kLong), c10::str("tensor ", i));
}

void check_memory() {
  const auto backend = default_group()->getBackend(torch::kCPU);
  ASSERT_TRUE(backend->supportsTensorAlloc(0));
  const torch::Tensor tensor = backend->allocateTensor(1000, torch::TensorOptions().dtype(torch::kHalf));
  EXPECT_EQ(tensor.sizes(), torch::IntArrayRef({1000}));
  EXPECT_EQ(tensor.scalar_type(), torch::kHalf);
  EXPECT_TRUE(process_arena()->contains(tensor.data_ptr(), 2000));
  EXPECT_EQ(backend->allocateTensor(0).numel(), 0);
  const auto data = backend->getMemAllocator()->allocate(100);
  EXPECT_TRUE(process_arena()->contains(data.get(), 100));
  expect_error(ErrorCode::kInvalidArgument, {"negative"}, [&] { backend->allocateTensor(-1); });
}

TEST(WorkMulti, FuturesAndPolling) {
  torch::Tensor survivor;
  run_world(2, [&survivor](int) {
    check_future_of_finished_work();
    check_future_of_running_work(2);
    check_callback(2);
    check_many_at_once(2);
    check_memory();
    EXPECT_EQ(default_group()->getBackend(torch::kCPU)->getError(), c10d::ErrorType::SUCCESS);
    // Memory of the group may outlive it.
    survivor = default_group()->getBackend(torch::kCPU)->allocateTensor(10).fill_(1);
    destroy_process_group();
    EXPECT_EQ(survivor.sum().item<float>(), 10.0F);
  });
}

// A callback leaves the group, by a call or by dropping the last handle, in the thread that completes futures.
void check_leaving_in_a_callback(int rank) {
  for (const bool by_name : {true, false}) {
    ProcessGroup group = new_group({0, 1});
    const c10::weak_intrusive_ptr<c10d::ProcessGroup> observer(group);
    const torch::Tensor received = torch::zeros({1});
    const Work work = rank == 0 ? irecv(received, 1, {.group = group}) : nullptr;
    if (rank == 0) {
      std::promise<bool> in_another_thread;
      const auto here = std::this_thread::get_id();
      work->getFuture()->addCallback(
          [group = std::move(group), by_name, here, &in_another_thread](c10::ivalue::Future&) mutable {
            if (by_name) destroy_process_group(group);
            group.reset();
            in_another_thread.set_value(std::this_thread::get_id() != here);
          });
      barrier();
      EXPECT_TRUE(in_another_thread.get_future().get());
      EXPECT_TRUE(observer.expired());
      EXPECT_EQ(received.item<float>(), 1.0F);
    } else {
      barrier();
      send(torch::ones({1}), 0, {.group = group});
    }
    barrier();
  }
}

TEST(WorkMulti, CallbacksMayLeaveTheGroup) {
  run_world(2, check_leaving_in_a_callback);
}

// The tensor gets other memory, or is to be resized, while an operation uses its memory.
void check_tensors_that_change(int rank) {
  std::vector<float> memory(3, 1.0F);
  bool freed = false;
  torch::Tensor tensor = torch::from_blob(memory.data(), {3}, [&freed](void*) { freed = true; });
  const torch::Tensor resized = torch::ones({3});
  std::vector<Work> works;
  if (rank == 0) works = {all_reduce_async(tensor), broadcast_async(resized, 1), broadcast_async(resized, 1)};
  if (rank == 0) {
    tensor.set_data(torch::zeros({1}));
    EXPECT_FALSE(freed);
    EXPECT_THROW(resized.resize_({1000}), c10::Error);
    resized.resize_({3});  // LibTorch has left it with the new sizes
    send(torch::ones({1}), 1);
  } else {
    recv(torch::empty({1}), 0);
    works = {all_reduce_async(tensor), broadcast_async(resized, 1), broadcast_async(resized, 1)};
  }
  for (const Work& work : works) work->wait();
  EXPECT_EQ(memory, std::vector<float>(3, 2.0F));
  EXPECT_EQ(freed, rank == 0);
  EXPECT_TRUE(torch::equal(resized, torch::ones({3})));
  EXPECT_EQ(resized.resize_({1000}).numel(), 1000);
}

TEST(WorkMulti, HoldsTheMemoryThatItUses) {
  run_world(2, check_tensors_that_change);
}

TEST(WorkMulti, ThreadsMayShareAGroup) {
  run_world(2, [](int) {
    const ProcessGroup other = new_group({0, 1});
    std::vector<std::thread> threads;
    for (const ProcessGroup& group : {default_group(), other}) {
      threads.emplace_back([group] {
        for (int i = 0; i < 200; ++i) {
          const torch::Tensor tensor = torch::full({100}, i, torch::kInt);
          all_reduce(tensor, {.group = group});
          EXPECT_EQ(tensor[0].item<int>(), 2 * i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace lockstep::test
