#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "checkpoint/manager/asynchronous_save.h"

namespace lockstep::checkpoint {
namespace {

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
    const Tensors staged = stage(tensors, kept, "run");
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(torch::equal(staged.at(name), tensor)) << name;
      EXPECT_TRUE(tensor.numel() == 0 || !staged.at(name).is_alias_of(tensor)) << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
