// SyncBatchNorm and converted layers. The judge is LibTorch's batch normalisation of the batches of all ranks in one.
#include "lockstep/nn/sync_batch_norm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/nn/data_parallel.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

struct Case {
  std::string name;
  std::vector<std::int64_t> shape;  // of one sample
  torch::Dtype dtype = torch::kFloat;
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track = true;
  bool channels_last = false;
  std::function<std::int64_t(int rank)> batch = [](int) { return 4; };
};

std::int64_t uneven(int rank) {
  return 2 + 3 * rank;
}
std::int64_t empty_on_rank_1(int rank) {
  return rank == 1 ? 0 : 3 + rank;
}
std::int64_t one_each(int) {
  return 1;
}

std::vector<Case> cases() {
  return {
      {.name = "rows", .shape = {6}, .batch = uneven},
      {.name = "sequences", .shape = {6, 5}, .momentum = std::nullopt},
      {.name = "images", .shape = {8, 5, 7}, .batch = empty_on_rank_1},
      {.name = "channels last", .shape = {8, 5, 7}, .channels_last = true, .batch = uneven},
      {.name = "volumes", .shape = {3, 2, 3, 4}, .channels_last = true, .batch = empty_on_rank_1},
      {.name = "double", .shape = {8, 3, 3}, .dtype = torch::kDouble, .momentum = std::nullopt, .batch = uneven},
      {.name = "bfloat16", .shape = {8, 4, 4}, .dtype = torch::kBFloat16, .batch = empty_on_rank_1},
      {.name = "half", .shape = {8, 4, 4}, .dtype = torch::kHalf, .batch = uneven},
      {.name = "not affine", .shape = {6, 3}, .affine = false},
      {.name = "no running statistics", .shape = {6, 3}, .track = false, .batch = uneven},
  };
}

Tensor sample_of(const Case& one, int rank, int step, int purpose) {
  std::vector<std::int64_t> shape = one.shape;
  shape.insert(shape.begin(), one.batch(rank));
  auto generator = at::detail::createCPUGenerator(1 + rank + 10 * step + 1000 * purpose);
  Tensor result = torch::randn(shape, generator).mul_(1 + rank).add_(3 * rank + purpose).to(one.dtype);
  if (one.channels_last) {
    result =
        result.contiguous(shape.size() == 5 ? torch::MemoryFormat::ChannelsLast3d : torch::MemoryFormat::ChannelsLast);
  }
  return result;
}

// [all, ...]
Tensor samples_of_all(const Case& one, int step, int purpose) {
  std::vector<Tensor> all;
  for (int rank = 0; rank < get_world_size(); ++rank) all.push_back(sample_of(one, rank, step, purpose));
  return torch::cat(all);
}

// Rows of this rank in what belongs to the batches of all ranks.
Tensor mine(const Case& one, const Tensor& all) {
  std::int64_t begin = 0;
  for (int rank = 0; rank < get_rank(); ++rank) begin += one.batch(rank);
  return all.narrow(0, begin, one.batch(get_rank()));
}

// A layer of any type, and its tensors.
struct Layer {
  std::function<Tensor(const Tensor&)> forward;
  std::shared_ptr<torch::nn::Module> module;
  Tensor weight, bias, running_mean, running_var;
};

template <typename Holder>
Layer layer_of(Holder holder) {
  return {[holder](const Tensor& x) mutable { return holder->forward(x); },
          holder.ptr(),
          holder->weight,
          holder->bias,
          holder->running_mean,
          holder->running_var};
}

Layer plain_layer(const Case& one) {
  const auto options = torch::nn::BatchNormOptions(one.shape[0])
                           .momentum(one.momentum)
                           .affine(one.affine)
                           .track_running_stats(one.track);
  if (one.shape.size() == 4) return layer_of(torch::nn::BatchNorm3d(options));
  if (one.shape.size() == 3) return layer_of(torch::nn::BatchNorm2d(options));
  return layer_of(torch::nn::BatchNorm1d(options));
}

Layer synchronised_layer(const Case& one, bool converted) {
  if (!converted) {
    return layer_of(SyncBatchNorm(
        SyncBatchNormOptions(one.shape[0]).momentum(one.momentum).affine(one.affine).track_running_stats(one.track)));
  }
  Layer layer = plain_layer(one);
  EXPECT_EQ(convert_sync_batchnorm(*layer.module), std::vector<std::string>{""});
  return layer;
}

void prepare(const Layer& layer, torch::Dtype dtype) {
  if (dtype == torch::kDouble) layer.module->to(torch::kDouble);
  if (!layer.weight.defined()) return;
  const torch::NoGradGuard no_grad;
  const Tensor steps = torch::arange(layer.weight.numel(), layer.weight.options());
  layer.weight.copy_(0.5 + 0.25 * steps);
  layer.bias.copy_(steps - 1);
}

void expect_close(const Tensor& ours, const Tensor& theirs, const Case& one, const std::string& what) {
  ASSERT_EQ(ours.defined(), theirs.defined()) << what;
  if (!ours.defined()) return;
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << what;
  if (ours.numel() == 0) return;
  const double tolerance = one.dtype == torch::kDouble ? 1e-12 : one.dtype == torch::kFloat ? 1e-5 : 2e-2;
  const Tensor a = ours.to(torch::kDouble);
  const Tensor b = theirs.to(torch::kDouble);
  EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance * std::max(1.0, b.abs().max().item<double>())))
      << what << " differs by up to " << (a - b).abs().max();
}

Tensor sum_over_ranks(const Tensor& tensor) {
  const Tensor sum = tensor.detach().clone();
  all_reduce(sum);
  return sum;
}

void train_beside_the_judge(const Case& one, bool converted) {
  Layer ours = synchronised_layer(one, converted);
  Layer judge = plain_layer(one);
  for (const Layer* layer : {&ours, &judge}) prepare(*layer, one.dtype);
  for (int step = 0; step < 3; ++step) {
    const std::string where = fmt::format("{}{}, step {}: ", one.name, converted ? ", converted" : "", step);
    Tensor x = sample_of(one, get_rank(), step, 0).requires_grad_();
    Tensor all = samples_of_all(one, step, 0).requires_grad_();
    const Tensor y = ours.forward(x);
    const Tensor judged = judge.forward(all);
    EXPECT_EQ(y.scalar_type(), one.dtype) << where;
    EXPECT_EQ(y.suggest_memory_format(), x.suggest_memory_format()) << where;
    for (Layer* layer : {&ours, &judge}) layer->module->zero_grad();
    y.backward(sample_of(one, get_rank(), step, 1));
    judged.backward(samples_of_all(one, step, 1));
    expect_close(y, mine(one, judged), one, where + "output");
    expect_close(x.grad(), mine(one, all.grad()), one, where + "gradient of the input");
    expect_close(ours.running_mean, judge.running_mean, one, where + "running_mean");
    expect_close(ours.running_var, judge.running_var, one, where + "running_var");
    if (!one.affine) continue;
    expect_close(sum_over_ranks(ours.weight.grad()), judge.weight.grad(), one, where + "gradient of the weight");
    expect_close(sum_over_ranks(ours.bias.grad()), judge.bias.grad(), one, where + "gradient of the bias");
  }
  if (one.track) expect_equal_on_all_ranks({ours.running_mean, ours.running_var}, one.name + ": running statistics");
}

class SyncBatchNormMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SyncBatchNormMulti, testing::Values(1, 2, 3, 5));

TEST_P(SyncBatchNormMulti, NormalisesAsOneBatch) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const Case& one : cases()) {
      for (const bool converted : {false, true}) train_beside_the_judge(one, converted);
    }
    // LibTorch's own check refuses this before a converted layer sees it.
    if (get_world_size() > 1)
      train_beside_the_judge({.name = "one each", .shape = {6}, .dtype = torch::kDouble, .batch = one_each}, false);
  });
}

TEST_P(SyncBatchNormMulti, EvaluationIsLocal) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool track : {true, false}) {
      const Case one{.name = "evaluation", .shape = {6, 3}, .track = track};
      for (const bool converted : {false, true}) {
        const Layer layer = synchronised_layer(one, converted);
        const Layer judge = plain_layer(one);
        layer.module->eval();
        judge.module->eval();
        if (get_rank() != 0) continue;  // a collective would wait for the others
        const Tensor x = sample_of(one, 0, 0, 0);
        EXPECT_TRUE(torch::equal(layer.forward(x), judge.forward(x)));
      }
    }
    barrier();
  });
}

// Statistics that are computed again before evaluation, without gradients.
TEST_P(SyncBatchNormMulti, SynchronisesWithoutGradients) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const Case one{.name = "without gradients", .shape = {6, 3}, .momentum = std::nullopt, .batch = uneven};
    for (const bool inference : {false, true}) {
      for (const bool converted : {false, true}) {
        const Layer ours = synchronised_layer(one, converted);
        const Layer judge = plain_layer(one);
        const torch::NoGradGuard no_grad;
        const c10::InferenceMode guard(inference);
        expect_close(ours.forward(sample_of(one, get_rank(), 0, 0)),
                     mine(one, judge.forward(samples_of_all(one, 0, 0))), one, "output");
        expect_close(ours.running_var, judge.running_var, one, "running_var");
      }
    }
  });
}

// Wide enough for DistributedDataParallel to place gradients, and what is summed during the backward pass, in buckets.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    line = register_module("line", torch::nn::Linear(32, 4096));
    norm = register_module("norm", torch::nn::BatchNorm1d(4096));
    last = register_module("last", torch::nn::Linear(4096, 8));
  }
  Tensor forward(const Tensor& x) { return last(torch::relu(norm(line(x)))); }
  torch::nn::Linear line{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Wide);

TEST_P(SyncBatchNormMulti, TrainsInsideDistributedDataParallel) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    torch::manual_seed(1);
    Wide net;
    Wide judge;
    for (Wide* one : {&net, &judge}) (*one)->to(torch::kDouble);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      const torch::NoGradGuard no_grad;
      judge->parameters()[i].copy_(net->parameters()[i]);
    }
    convert_sync_batchnorm(net);
    DistributedDataParallel ddp(net);
    net->norm->bias.requires_grad_(false);
    judge->norm->bias.requires_grad_(false);
    for (int step = 0; step < 4; ++step) {
      std::vector<Tensor> batches;
      for (int of = 0; of < get_world_size(); ++of)
        batches.push_back(random_input({5, 32}, step, of).to(torch::kDouble));
      for (Wide* one : {&net, &judge}) (*one)->zero_grad();
      ddp->forward(batches[get_rank()]).square().mean().backward();
      judge->forward(torch::cat(batches)).square().mean().backward();
      expect_same_gradients(*net, *judge, fmt::format("step {}", step), {.relative = 1e-9, .absolute = 1e-12});
      EXPECT_FALSE(net->norm->bias.grad().defined());
    }
    EXPECT_TRUE(torch::allclose(net->norm->running_var, judge->norm->running_var, 1e-9));
  });
}

TEST(SyncBatchNormErrorsMulti, RefusesWhatHasNoVarianceOnEveryRank) {
  run_processes(3, [](int rank) {
    const Rank world;
    SyncBatchNorm norm(6);
    const std::string error = error_of([&] { norm->forward(torch::ones({rank == 1 ? 1 : 0, 6})); });
    expect_in(error, {"SyncBatchNorm of 6 channels", "more than 1 value per channel", "over all ranks"});
    EXPECT_EQ(norm->forward(torch::ones({0, 6})).sizes(), (std::vector<std::int64_t>{0, 6}));  // nothing on any rank
    EXPECT_TRUE(torch::equal(norm->running_mean, torch::zeros({6})));
    expect_in(error_of([&] { norm->forward(torch::ones({6})); }), {"(N, C, +)"});
    expect_in(error_of([&] { norm->forward(torch::ones({2, 7})); }), {"expected 6 channels", "[2, 7]"});
    const Tensor x = torch::randn({4, 6}).requires_grad_();
    const Tensor y = norm->forward(x).square().sum();
    expect_in(error_of([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }),
              {"second derivatives"});
    barrier();
  });
}

// A SyncBatchNorm says so before it sends anything.
TEST(SyncBatchNormErrorsMulti, ConvertedLayersNameOtherNumbersOfChannels) {
  run_processes(2, [](int) {
    const Rank world;
    for (const bool track : {true, false}) {
      torch::nn::Sequential net(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(6).track_running_stats(track)));
      convert_sync_batchnorm(net);
      for (const int channels : {4, 5000}) {
        expect_in(error_of([&] {
                    net->forward(torch::randn({3, channels}));
                  }),
                  {"batch normalisation '0'", "weight has 6 values", fmt::format("[3, {}]", channels)});
      }
      EXPECT_EQ(net->forward(torch::randn({3, 6})).size(1), 6);
    }
  });
}

// In a world of several ranks. Without a world, for evaluation and in a group of this rank alone, layers are plain.
TEST(SyncBatchNormErrorsMulti, IsRefusedByDataParallel) {
  run_processes(2, [](int rank) {
    using Net = torch::nn::Sequential;
    const DataParallelOptions two{.cpu_replicas = 2};
    const std::vector<std::string> refused{"DataParallel: layer '1'", "BatchNorm", "use DistributedDataParallel"};
    const Tensor x = torch::randn({8, 3});
    Net before(torch::nn::Linear(3, 3), SyncBatchNorm(3));
    DataParallel<Net> wrapped_before(before, two);
    EXPECT_EQ(wrapped_before.forward(x).size(0), 8);

    const Rank world;
    expect_in(error_of([&] { wrapped_before.forward(x); }), refused);
    for (const bool converted : {false, true}) {
      Net net = converted ? Net(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3))
                          : Net(torch::nn::Linear(3, 3), SyncBatchNorm(3));
      if (converted) convert_sync_batchnorm(net);
      expect_in(error_of([&] { DataParallel<Net> parallel(net, two); }), refused);
      DataParallel<Net> alone(net);  // the module itself runs in this thread
      EXPECT_EQ(alone.forward(x).size(0), 8);
      net->eval();
      DataParallel<Net> evaluating(net, two);
      EXPECT_EQ(evaluating.forward(x).size(0), 8);
      net->train();
      expect_in(error_of([&] { evaluating.forward(x); }), refused);
      convert_sync_batchnorm(net, new_group({rank}));
      DataParallel<Net> by_itself(net, two);
      EXPECT_EQ(by_itself.forward(x).size(0), 8);
    }
    Net plain(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
    DataParallel<Net> made(plain, two, [] { return Net(torch::nn::Linear(3, 3), SyncBatchNorm(3)); });
    expect_in(error_of([&] { made.forward(x); }), refused);
  });
}

// Rank 1 leaves out a forward pass, or a backward pass: the others are told from where the layer was made or converted.
TEST(SyncBatchNormFault, NamesTheLineOfTheProgram) {
  for (const bool converted : {false, true}) {
    for (const bool backward : {false, true}) {
      run_processes(2, [&](int rank) {
        torch::set_num_threads(1);
        const ProcessGroupGuard group;
        torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
        if (converted) {
          convert_sync_batchnorm(net, nullptr, {}, {"src/model.cpp", 12});
        } else {
          net = torch::nn::Sequential(torch::nn::Linear(4, 4),
                                      SyncBatchNorm(SyncBatchNormOptions(4, {"src/model.cpp", 12})));
        }
        Tensor loss = net->forward(torch::randn({3, 4})).square().sum();
        barrier();
        nn_detail::group_of_synchronised_layers(nullptr, torch::kCPU)
            ->getBackend(torch::kCPU)
            ->setTimeout(std::chrono::milliseconds(700));
        if (rank == 0) {
          expect_in(
              error_of([&] {
                backward ? loss.backward() : static_cast<void>(net->forward(torch::randn({3, 4})));
              }),
              {" timed out on rank 0: rank(s) 1 (last call all_gather #1 at src/model.cpp:12 (",
               "called by rank(s) 0 at src/model.cpp:12", converted ? "(batch normalisation '1')" : "(SyncBatchNorm)"});
        }
        expect_in(error_of([] { barrier(); }), {"timed out on rank 0"});  // the groups of a world break together
      });
    }
  }
}

TEST(SyncBatchNormFault, NamesTheLayerAndTheRankThatDoesNotCome) {
  const SharedScratchFolder folder;
  run_processes(3, [&folder](int rank) {
    torch::set_num_threads(1);
    // Long enough for all ranks to start, and for both of those that wait to come.
    const ProcessGroupGuard group("", {.timeout = std::chrono::seconds(15)});
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    convert_sync_batchnorm(net);
    const auto given_up = [&](int of) { return std::filesystem::exists(folder.path(std::to_string(of))); };
    if (rank == 2) {
      while (!given_up(0) || !given_up(1)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    expect_in(error_of([&] { net->forward(torch::randn({3, 4})); }), {"batch normalisation '1'", "Missing: rank 2"});
    std::ofstream(folder.path(std::to_string(rank)));
  });
}

}  // namespace
}  // namespace lockstep::test
