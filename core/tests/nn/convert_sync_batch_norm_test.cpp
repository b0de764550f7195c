// What convert_sync_batchnorm finds, keeps and refuses. sync_batch_norm_test.cpp has what converted layers compute.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "base/call_place.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
using Names = std::vector<std::string>;

// Layers in every kind of container, and in members that forward() calls by their own types.
struct ManyImpl : torch::nn::Cloneable<ManyImpl> {
  ManyImpl() { reset(); }
  void reset() override {
    typed = register_module("typed", torch::nn::BatchNorm2d(3));
    row = register_module("row", torch::nn::Sequential(torch::nn::Conv2d(3, 3, 1), torch::nn::BatchNorm2d(3)));
    list = register_module(
        "list", torch::nn::ModuleList(
                    torch::nn::BatchNorm2d(3),
                    torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).track_running_stats(true))));
    torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> items;
    items.insert("norm", torch::nn::BatchNorm3d(3).ptr());
    dict = register_module("dict", torch::nn::ModuleDict(items));
    own = register_module("own", SyncBatchNorm(3));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = list[0]->as<torch::nn::BatchNorm2d>()->forward(row->forward(typed(x)));
    return own(dict["norm"]->as<torch::nn::BatchNorm3d>()->forward(y.unsqueeze(-1)));
  }
  torch::nn::BatchNorm2d typed{nullptr};
  torch::nn::Sequential row{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  SyncBatchNorm own{nullptr};
};
TORCH_MODULE(Many);

const Names kAll{"typed", "row.1", "list.0", "dict.norm", "own"};

TEST(ConvertSyncBatchNorm, KeepsEverythingButTheStatistics) {
  Many net;
  net->typed->eval();
  net->row[1]->as<torch::nn::BatchNorm2d>()->weight.requires_grad_(false);
  const auto parameters = net->named_parameters();
  const auto buffers = net->named_buffers();
  const torch::nn::Module* const typed = net->typed.get();
  EXPECT_EQ(convert_sync_batchnorm(net), kAll);
  EXPECT_EQ(sync_batchnorm_layers(*net), kAll);
  EXPECT_EQ(net->typed.get(), typed);
  EXPECT_FALSE(net->typed->is_training());
  EXPECT_TRUE(net->is_training());
  ASSERT_EQ(net->named_parameters().keys(), parameters.keys());
  for (const auto& item : net->named_parameters()) EXPECT_TRUE(item.value().is_same(parameters[item.key()]));
  for (const auto& item : net->named_buffers()) EXPECT_TRUE(item.value().is_same(buffers[item.key()]));
  EXPECT_FALSE(net->row[1]->as<torch::nn::BatchNorm2d>()->weight.requires_grad());
  EXPECT_EQ(net->forward(torch::randn({2, 3, 4, 4})).dim(), 5);  // without a world: plain layers
}

TEST(ConvertSyncBatchNorm, LastsThroughMovesAndLoadsButNotClones) {
  Many net;
  convert_sync_batchnorm(net);
  net->to(torch::kDouble);
  EXPECT_EQ(sync_batchnorm_layers(*net), kAll) << "after to()";
  std::stringstream file;
  torch::save(net, file);
  torch::load(net, file);
  EXPECT_EQ(sync_batchnorm_layers(*net), kAll) << "after load";
  const auto clone = std::dynamic_pointer_cast<ManyImpl>(net->clone());
  EXPECT_EQ(sync_batchnorm_layers(*clone), Names{"own"});
  EXPECT_EQ(convert_sync_batchnorm(*clone), kAll);
}

TEST(ConvertSyncBatchNorm, LeavesExceptionsAlone) {
  Many net;
  EXPECT_EQ(convert_sync_batchnorm(net, nullptr, {"row", "list.0"}), (Names{"typed", "dict.norm", "own"}));
  EXPECT_EQ(sync_batchnorm_layers(*net), (Names{"typed", "dict.norm", "own"}));
  expect_in(error_of([&] { convert_sync_batchnorm(net, nullptr, {"rows"}); }), {"'rows'", "no such module"});
}

struct OwnNormImpl : torch::nn::Module {
  OwnNormImpl() {
    register_buffer("running_mean", torch::zeros({3}));
    register_buffer("running_var", torch::ones({3}));
  }
  Tensor forward(const Tensor& x) { return x; }
};
TORCH_MODULE(OwnNorm);

TEST(ConvertSyncBatchNorm, RefusesByNameAndChangesNothing) {
  const auto bare = torch::nn::BatchNorm1dOptions(3).affine(false).track_running_stats(false);
  torch::nn::ModuleList without_tensors(torch::nn::BatchNorm1d(3), torch::nn::Sequential(torch::nn::BatchNorm1d(bare)));
  expect_in(error_of([&] { convert_sync_batchnorm(without_tensors); }),
            {"'1.0'", "neither affine parameters nor running statistics", "SyncBatchNorm"});
  EXPECT_EQ(sync_batchnorm_layers(*without_tensors), Names{});
  torch::nn::Sequential of_another_kind(torch::nn::BatchNorm1d(3), OwnNorm());
  expect_in(error_of([&] { convert_sync_batchnorm(of_another_kind); }), {"'1'", "OwnNorm", "except"});
  EXPECT_EQ(sync_batchnorm_layers(*of_another_kind), Names{});
  EXPECT_EQ(convert_sync_batchnorm(of_another_kind, nullptr, {"1"}), Names{"0"});
}

// It has no tensors to mark, and errors name its own line.
TEST(ConvertSyncBatchNorm, GivesALayerThatSynchronisesAlreadyNoLabel) {
  torch::nn::Sequential net;
  net->push_back("only_here", SyncBatchNorm(3));
  const TextNumber before = texts_so_far();
  EXPECT_EQ(convert_sync_batchnorm(net), Names{"only_here"});
  EXPECT_EQ(texts_so_far(), before);
}

TEST(ConvertSyncBatchNormMulti, LetsGoOfAGroupThatWasLeft) {
  run_processes(2, [](int) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(3));
    const Tensor x = torch::randn({4, 3});
    using Weak = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
    std::optional<Weak> world;
    {
      const Rank rank;
      ProcessGroup group = new_group({0, 1});
      const Weak both(group);
      convert_sync_batchnorm(net, group);
      group.reset();
      net->forward(x);
      ASSERT_FALSE(both.expired()) << "the layer keeps it";
      destroy_process_group(both.lock());
      EXPECT_TRUE(both.expired());
      expect_in(error_of([&] { net->forward(x); }), {"batch normalisation '0'", "has left its group", "another one"});
      EXPECT_EQ(sync_batchnorm_layers(*net), Names{});
      net->eval();
      net->forward(x);
      net->train();
      convert_sync_batchnorm(net, default_group());
      world.emplace(default_group());
      net->forward(x);
    }
    EXPECT_TRUE(world->expired()) << "the end of the world is the end of its groups";
  });
}

}  // namespace
}  // namespace lockstep::test
