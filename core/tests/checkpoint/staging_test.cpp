#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "checkpoint/manager/asynchronous_save.h"

namespace lockstep::checkpoint {
namespace {

TEST(StagedCopies, AChangeThatComesTooEarlyIsAnError) {
  const torch::Tensor weight = torch::ones({1000}).requires_grad_();
  const torch::Tensor buffer = torch::ones({1000});
  Tensors kept;
  for (const bool changed : {false, true, false}) {
    const Staged staged = stage({{"model.weight", weight}, {"model.buffer", buffer}}, kept, /*overlap=*/true, "run");
    ASSERT_EQ(staged.pending.size(), 1U);
    const torch::NoGradGuard no_grad;
    buffer.add_(1);
    if (changed) weight.add_(1);
    try {
      copy_pending(staged.pending, "run");
      EXPECT_FALSE(changed);
      EXPECT_TRUE(torch::equal(staged.tensors.at("model.weight"), weight));
      EXPECT_TRUE(torch::equal(staged.tensors.at("model.buffer"), buffer - 1));
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(changed);
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("\"model.weight\" was changed"), std::string::npos) << error.what();
    }
  }
}

// What has gaps, is lazy or has other sizes than before; large tensors are copied by several threads.
TEST(StagedCopies, AreThoseOfEveryTensor) {
  Tensors kept;
  for (const std::int64_t rows : {3, 3, 7000}) {
    const torch::Tensor base = torch::randn({rows, 1500});
    const torch::Tensor numbers = torch::complex(base, base + 1);
    const Tensors tensors{{"plain", base},
                          {"again", base},
                          {"transposed", base.t()},
                          {"part", base.narrow(1, 3, 7)},
                          {"expanded", base.narrow(0, 0, 1).expand({4, 1500})},
                          {"conjugated", numbers.conj()},
                          {"negated", at::_neg_view(base)},
                          {"zeros", at::_efficientzerotensor({2, 3}, torch::kFloat)},
                          {"empty", torch::empty({0, 3})},
                          {"odd", base.flatten().narrow(0, 1, 4321)}};
    const Staged staged = stage(tensors, kept, /*overlap=*/false, "run");
    EXPECT_TRUE(staged.pending.empty());
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(torch::equal(staged.tensors.at(name), tensor)) << name;
      EXPECT_TRUE(tensor.numel() == 0 || !staged.tensors.at(name).is_alias_of(tensor)) << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
