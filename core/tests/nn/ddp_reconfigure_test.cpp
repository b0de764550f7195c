// Wrappers whose group was formed anew: they say so, and new ones train.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Wrapper = DistributedDataParallel<torch::nn::Linear>;

void train(Wrapper& ddp) {
  ddp(torch::full({2, 3}, get_rank() + 1.0F)).sum().backward();
}

// The mean over the ranks of what train() adds for each weight.
void expect_mean(torch::nn::Linear& model, float mean) {
  EXPECT_EQ(model->weight.grad()[0][0].item<float>(), mean);
  model->zero_grad();
}

void expect_replaced(Wrapper& old) {
  try {
    train(old);
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("formed anew by reconfigure"), std::string::npos) << text;
    EXPECT_NE(text.find("make wrappers"), std::string::npos) << text;
  }
}

TEST(DdpReconfigureMulti, AnOldWrapperThrowsAndANewOneTrains) {
  run_processes(2, [](int) {
    const ProcessGroupGuard guard("", {.timeout = std::chrono::seconds(60), .enable_reconfigure = true});
    torch::nn::Linear model(3, 4);
    auto old = std::make_unique<Wrapper>(model);
    train(*old);
    expect_mean(model, 3);
    reconfigure();
    expect_replaced(*old);
    model->forward(torch::full({2, 3}, get_rank() + 1.0F)).sum().backward();
    expect_mean(model, 2.0F * static_cast<float>(get_rank() + 1));  // gradients go past the old one
    {
      Wrapper fresh(model);
      train(fresh);
      expect_mean(model, 3);
      expect_replaced(*old);
      train(fresh);
      expect_mean(model, 3);
    }
    old = std::make_unique<Wrapper>(model);
    train(*old);
    expect_mean(model, 3);
  });
}

// The program replaces the wrapper, and the old one still lives while the new one is made.
TEST(DdpReconfigureMulti, ANewWrapperInAWorldOfOtherRanks) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard guard("", {.timeout = std::chrono::seconds(60)});
    const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
    torch::nn::Linear encoder(3, 4), head(4, 2);
    auto first = std::make_unique<Wrapper>(encoder);
    auto second =
        std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(torch::nn::Sequential(encoder, head));
    const torch::Tensor pending = (*second)(torch::ones({2, 3})).sum();
    if (rank == 1) return;
    reconfigure({.handles = {all[2], all[0]}, .uuid = 1});
    first = std::make_unique<Wrapper>(encoder);
    train(*first);
    expect_mean(encoder, 3);
    second = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(torch::nn::Sequential(encoder, head));
    (*second)(torch::full({2, 3}, static_cast<float>(get_rank()))).sum().backward();
    const torch::Tensor bias = head->bias.grad(), weights = head->weight.sum(0);
    EXPECT_TRUE(torch::equal(bias, torch::full({2}, 2.0F)));
    // Inputs of 0 and of 1: each weight gets 2 / 2 times the sum of the head's weights behind it.
    EXPECT_TRUE(torch::allclose(encoder->weight.grad(), weights.unsqueeze(1).expand({4, 3})));
    encoder->zero_grad();
    reconfigure({.handles = {all[rank]}, .uuid = 2});  // alone: nothing is reduced
    first = std::make_unique<Wrapper>(encoder);
    train(*first);
    expect_mean(encoder, 2);
  });
}

// A wrapper of one rank needs no group: without a word it would train apart from the ranks that have come.
TEST(DdpReconfigureMulti, AWrapperOfOneRankThatIsNoLongerAlone) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard guard("", {.timeout = std::chrono::seconds(60)});
    const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
    reconfigure({.handles = {all[rank]}, .uuid = 1});
    torch::nn::Linear model(3, 4);
    Wrapper alone(model);
    train(alone);
    expect_mean(model, 2);
    reconfigure({.handles = all, .uuid = 2});
    expect_replaced(alone);
    Wrapper together(model);
    train(together);
    expect_mean(model, 3);
  });
}

}  // namespace
}  // namespace lockstep::test
