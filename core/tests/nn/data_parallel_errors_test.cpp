// DataParallel's threads, and what happens when something goes wrong in them.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/torch.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "nn/data_parallel/data_parallel_threads.h"
#include "nn/data_parallel_models.h"
#include "nn/error_texts.h"
#include "support/forked.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/thread_limit.h"

namespace lockstep::test {
namespace {

struct Seen {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<std::vector<int>> cores;
  std::vector<int> intra_op_threads;
  std::vector<bool> gradients, inference, autocast, training;
  std::vector<at::ScalarType> autocast_dtypes;
};

std::vector<int> cores_of_this_thread() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof mask, &mask);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

enum class Fault { kNone, kTorch, kStandard, kMemory, kUnknown, kBackward };

// Reports what it sees; can fail where a part begins with a negative number.
struct SpyImpl : torch::nn::Cloneable<SpyImpl> {
  SpyImpl() { reset(); }
  void reset() override { line = register_module("line", torch::nn::Linear(2, 2)); }
  torch::Tensor forward(const torch::Tensor& x, Fault fault = Fault::kNone) {
    {
      const std::scoped_lock lock(seen->mutex);
      seen->threads.insert(std::this_thread::get_id());
      seen->cores.push_back(cores_of_this_thread());
      seen->intra_op_threads.push_back(at::get_num_threads());
      seen->gradients.push_back(torch::GradMode::is_enabled());
      seen->inference.push_back(c10::InferenceMode::is_enabled());
      seen->autocast.push_back(at::autocast::is_autocast_enabled(at::kCPU));
      seen->autocast_dtypes.push_back(at::autocast::get_autocast_dtype(at::kCPU));
      seen->training.push_back(is_training() && line->is_training());
    }
    const bool fails = x.size(0) > 0 && x[0][0].item<float>() < 0;
    if (fails && fault == Fault::kTorch) torch::zeros({2}).view({3});
    if (fails && fault == Fault::kStandard) throw std::out_of_range("the program's own");
    if (fails && fault == Fault::kMemory) throw std::bad_alloc();
    if (fails && fault == Fault::kUnknown) throw 17;
    torch::Tensor y = line(x);
    if (fails && fault == Fault::kBackward)
      y.register_hook([](const torch::Tensor&) { TORCH_CHECK_INDEX(false, "in the hook"); });
    return y;
  }
  torch::nn::Linear line{nullptr};
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
};
TORCH_MODULE(Spy);

// Without those that are ending: a thread that was joined stays in /proc for a moment.
std::size_t threads_of_process() {
  constexpr unsigned long kEnding = 4;  // PF_EXITING in the kernel
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    // "tid (any name) state ppid pgrp session tty tpgid flags ..."
    const std::string text = read_file(task.path() / "stat");
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string other;
    for (int i = 0; i < 6; ++i) fields >> other;
    unsigned long flags = kEnding;
    if (fields >> flags && (flags & kEnding) == 0) ++count;
  }
  return count;
}

TEST(DataParallelThreads, AreKeptAndHaveTheirOwnCores) {
  nn_detail::end_openmp_threads();
  const int intra_op = at::get_num_threads();
  std::thread([] {}).join();  // with the first one TSan may start a thread of its own
  const std::size_t before = threads_of_process();
  const std::vector<int> allowed = cores_of_this_thread();
  {
    Spy net;
    DataParallel<Spy> parallel(net, {.cpu_replicas = 2, .threads_per_replica = 1});
    EXPECT_EQ(threads_of_process(), before + 2);
    for (int pass = 0; pass < 3; ++pass) parallel.forward(torch::ones({4, 2})).sum().backward();
    EXPECT_EQ(net->seen->threads.size(), 2U);
    EXPECT_EQ(net->seen->threads.count(std::this_thread::get_id()), 0U);
    EXPECT_EQ(net->seen->intra_op_threads, std::vector<int>(6, 1));
    if (allowed.size() > 1) {
      std::set<int> all;
      for (int i = 0; i < 2; ++i) all.insert(net->seen->cores[i].begin(), net->seen->cores[i].end());
      EXPECT_EQ(net->seen->cores[0].size() + net->seen->cores[1].size(), all.size()) << "disjoint";
    }
    EXPECT_EQ(cores_of_this_thread(), allowed);
    EXPECT_EQ(at::get_num_threads(), intra_op);
    int of_new_thread = 0;
    std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
    EXPECT_EQ(of_new_thread, intra_op);
  }
  EXPECT_TRUE(wait_for([&] { return threads_of_process() == before; })) << "joined";
}

// Otherwise these threads would look for work for a while, on the replicas' cores.
TEST(DataParallelThreads, EndThoseOfTheCallersOperators) {
  const int intra_op = at::get_num_threads();
  at::set_num_threads(3);  // starts threads of other libraries too, which stay
  torch::Tensor large = torch::ones({1 << 20});
  large.add_(1);
  const std::size_t before = threads_of_process() - 2;
  nn_detail::end_openmp_threads();
  EXPECT_TRUE(wait_for([&] { return threads_of_process() == before; })) << "nobody joins them";
  large.add_(1);
  EXPECT_EQ(threads_of_process(), before + 2);
  {
    DataParallel<Spy> parallel(Spy(), {.cpu_replicas = 2, .threads_per_replica = 1});
    parallel.forward(torch::ones({4, 2}));
    EXPECT_TRUE(wait_for([&] { return threads_of_process() == before + 2; })) << "only those of the replicas";
    large.add_(1);
    EXPECT_EQ(threads_of_process(), before + 4);
  }
  EXPECT_EQ(large.sum().item<float>(), 4 * (1 << 20));
  at::set_num_threads(intra_op);
}

TEST(DataParallelThreads, HaveTheCallersModes) {
  Spy net;
  DataParallel<Spy> parallel(net, {.cpu_replicas = 2});
  const torch::Tensor x = torch::ones({4, 2});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(parallel.forward(x).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(parallel.forward(x).is_inference());
  }
  net->eval();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  at::autocast::increment_nesting();
  EXPECT_EQ(parallel.forward(x).scalar_type(), at::kHalf);
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  net->train();
  net->line->eval();
  parallel.forward(x).sum().backward();
  net->line->train();
  EXPECT_TRUE(parallel.forward(x).requires_grad());

  using Flags = std::vector<bool>;
  const Seen& seen = *net->seen;
  EXPECT_EQ(seen.gradients, (Flags{false, false, false, false, true, true, true, true, true, true}));
  EXPECT_EQ(seen.inference, (Flags{false, false, true, true, false, false, false, false, false, false}));
  EXPECT_EQ(seen.autocast, (Flags{false, false, false, false, true, true, false, false, false, false}));
  EXPECT_EQ(seen.training, (Flags{true, true, true, true, false, false, false, false, true, true}));
  EXPECT_EQ(seen.autocast_dtypes[4], at::kHalf);
  EXPECT_EQ(seen.autocast_dtypes[6], at::kBFloat16);
}

TEST(DataParallelThreads, RethrowWithTheReplicasName) {
  Spy net;
  DataParallel<Spy> parallel(net, {.cpu_replicas = 3});
  const torch::Tensor good = torch::ones({6, 2});
  torch::Tensor bad = good.clone();
  bad.slice(0, 2, 6).fill_(-1);  // the parts of replicas 1 and 2
  expect_in(error_of([&] { parallel.forward(bad, Fault::kTorch); }), {"in replica 1 on cpu:1", "shape '[3]'"});
  try {
    parallel.forward(bad, Fault::kStandard);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    expect_in(error.what_without_backtrace(), {"replica 1 on cpu:1: the program's own"});
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
  try {
    parallel.forward(bad, Fault::kMemory);
    ADD_FAILURE() << "no error";
  } catch (const std::bad_alloc& error) {
    expect_in(error.what(), {"replica 1 on cpu:1: out of memory", "bad_alloc"});
  }
  try {
    parallel.forward(bad, Fault::kUnknown);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    expect_in(error.what_without_backtrace(), {"replica 1 on cpu:1: an exception that is no std::exception"});
    EXPECT_THROW(std::rethrow_if_nested(error), int);
  }
  EXPECT_EQ(net->seen->threads.size(), 3U) << "all replicas ran to their ends";
  const torch::Tensor output = parallel.forward(bad, Fault::kBackward);
  EXPECT_THROW(output.sum().backward(), c10::IndexError) << "the type stays";
  expect_in(error_of([&] { parallel.forward(bad, Fault::kBackward).sum().backward(); }),
            {"in replica 1 on cpu:1", "in the hook"});
  net->zero_grad();
  parallel.forward(good).sum().backward();
  EXPECT_TRUE(torch::equal(net->line->bias.grad(), torch::full({2}, 6.))) << "works afterwards";
}

TEST(DataParallelThreads, AreNotInForks) {
  Spy net;
  DataParallel<Spy> parallel(net, {.cpu_replicas = 2});
  EXPECT_EQ(in_fork([&] {
              const std::string text = error_of([&] { parallel.forward(torch::ones({4, 2})); });
              return text.find("forked") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST(DataParallelThreads, EndWhenTheSystemRefusesOne) {
  EXPECT_EXIT(
      {
        Spy net;
        refuse_threads(1);
        const std::size_t before = threads_of_process();
        const std::string text = error_of([&] { DataParallel<Spy> parallel(net, {.cpu_replicas = 2}); });
        expect_in(text, {"cannot start a thread for DataParallel, replica 1 on cpu:1", "ulimit"});
        EXPECT_TRUE(wait_for([&] { return threads_of_process() == before; }));
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

// Registers in its constructor, as most modules do, and so cannot be cloned.
struct FixedImpl : torch::nn::Module {
  explicit FixedImpl(int width = 3) { line = register_module("line", torch::nn::Linear(2, width)); }
  torch::Tensor forward(const torch::Tensor& x) { return line(x); }
  torch::nn::Linear line{nullptr};
};
TORCH_MODULE(Fixed);

TEST(DataParallelErrors, SayHowToServeModulesWithoutClone) {
  expect_in(error_of([] { DataParallel<Fixed> parallel(Fixed(), {.cpu_replicas = 2}); }),
            {"cannot be cloned", "Cloneable", "[] { return Net(); }"});
  DataParallel<Fixed> alone(Fixed(4));
  EXPECT_EQ(alone.forward(torch::ones({3, 2})).size(1), 4);
  Fixed net(5);
  DataParallel parallel(net, {.cpu_replicas = 2}, [] { return Fixed(5); });
  const torch::Tensor x = torch::ones({3, 2});
  EXPECT_TRUE(torch::allclose(parallel.forward(x), net(x)));
  DataParallel by_value(FixedImpl(), {.cpu_replicas = 2}, [] { return std::make_shared<FixedImpl>(); });
  DataParallel by_pointer(net.ptr(), {.cpu_replicas = 2}, [] { return FixedImpl(5); });
  static_assert(std::is_same_v<decltype(by_pointer)::Module, FixedImpl>);
  EXPECT_EQ(by_value(x).size(1), 3);
  EXPECT_EQ(by_pointer(x).size(1), 5);
  expect_in(error_of([&] { DataParallel<Fixed> wrong(net, {.cpu_replicas = 2}, [] { return Fixed(6); }); }),
            {"parameter 'line.weight' has the shape [6, 2] in the replica and [5, 2] in the module"});
  expect_in(error_of([&] { DataParallel<Fixed> wrong(net, {.cpu_replicas = 2}, [&] { return net; }); }),
            {"a new module in each call"});
}

TEST(DataParallelErrors, NameWrongOptions) {
  const auto error = [](const DataParallelOptions& options) {
    return error_of([&] { DataParallel<Spy> parallel(Spy(), options); });
  };
  const std::string null = "expected a module, found a null pointer";
  expect_in(error_of([] { DataParallel<Spy> parallel(Spy(nullptr), {.cpu_replicas = 2}); }), {null});
  expect_in(error_of([] { DataParallel<std::shared_ptr<SpyImpl>> parallel(nullptr); }), {null});
  expect_in(error({.cpu_replicas = 0}), {"cpu_replicas must be at least 1, got 0"});
  expect_in(error({.threads_per_replica = -1}), {"threads_per_replica"});
  expect_in(error({.device_ids = {torch::kMeta}}),
            {"parameter 'line.weight' is on cpu, but device_ids begins with meta", "module->to(device)"});
  expect_in(error({.device_ids = {torch::kCPU, torch::kMeta}}), {"of one type, got cpu and meta"});
  expect_in(error({.device_ids = {{torch::kMeta, 0}, {torch::kMeta, 0}}}), {"names meta:0 twice"});
  expect_in(error({.device_ids = {{torch::kMeta, 3}}}), {"names meta:3, but there are 1 devices"});
  expect_in(error({.device_ids = {torch::kCPU}, .cpu_replicas = 2}), {"give one of them"});
  expect_in(error({.output_device = torch::kMeta}), {"output_device must be of the type of device_ids"});
  expect_in(error({.device_ids = {{torch::kMeta, 0}}, .output_device = torch::Device(torch::kMeta, 3)}),
            {"output_device is meta:3, but there are 1 devices"});
  Spy net;
  DataParallel<Spy> parallel(net, {.device_ids = {torch::kCPU, torch::kCPU}, .output_device = torch::kCPU});
  EXPECT_EQ(parallel.devices().size(), 2U);
  net->line->register_buffer("elsewhere", torch::zeros({1}, torch::kMeta));
  expect_in(error_of([&] { parallel.forward(torch::ones({2, 2})); }), {"buffer 'line.elsewhere' is on meta"});
}

}  // namespace
}  // namespace lockstep::test
