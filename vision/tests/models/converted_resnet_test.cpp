// convert_sync_batchnorm on a model whose forward calls its layers by their type.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/models/resnet.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

// The statistics of every layer are those of all ranks' batches, and other groups count only their own.
TEST(ConvertSyncBatchNormMulti, ReachesLayersThatForwardCallsByType) {
  run_processes(4, [](int rank) {
    const Rank world;
    const ProcessGroup pair = new_subgroups(2);
    const int first = rank / 2 * 2;
    torch::manual_seed(1);
    models::ResNet net = models::resnet18({.num_classes = 10});
    models::ResNet judge = models::resnet18({.num_classes = 10});
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) judge->parameters()[i].copy_(net->parameters()[i]);
    EXPECT_EQ(convert_sync_batchnorm(net, pair).size(), 20U);
    net->to(torch::kDouble);
    judge->to(torch::kDouble);
    std::vector<Tensor> batches;
    for (int of = first; of < first + 2; ++of)
      batches.push_back(random_input({2, 3, 32, 32}, 0, of).to(torch::kDouble));
    const Tensor ours = net->forward(batches[rank - first]);
    const Tensor expected = judge->forward(torch::cat(batches)).narrow(0, 2 * (rank - first), 2);
    EXPECT_TRUE(torch::allclose(ours, expected, 1e-9, 1e-9));
    for (const auto& item : net->named_buffers()) {
      EXPECT_TRUE(torch::allclose(item.value(), judge->named_buffers()[item.key()], 1e-9, 1e-9)) << item.key();
    }
  });
}

}  // namespace
}  // namespace lockstep::test
