// GradientPlacement without a Reducer: which allocations of a backward pass get a slot.
#include "nn/ddp/gradient_placement.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace lockstep::nn_detail {
namespace {

constexpr std::int64_t kElements = 10000;
constexpr std::size_t kBytes = kElements * sizeof(float);

// Runs its body in a backward pass, where gradients are made.
struct InBackward : torch::autograd::Function<InBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const std::function<void()>* body) {
    context->saved_data["body"] = reinterpret_cast<std::int64_t>(body);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["body"].toInt()))();
    return {gradients[0], torch::Tensor()};
  }
};

void in_backward(const std::function<void()>& body) {
  InBackward::apply(torch::ones({1}, torch::requires_grad()), &body).sum().backward();
}

class GradientPlacementTest : public testing::Test {
 protected:
  GradientPlacementTest()
      : parameter_(torch::zeros({kElements}, torch::requires_grad())),
        bucket_(torch::zeros({2 * kElements})),
        placement_(std::make_shared<GradientPlacement>(std::vector<torch::Tensor>{parameter_})) {
    placement_->set_slot(0, slot());
  }
  ~GradientPlacementTest() override { placement_->end(); }

  std::shared_ptr<Slot> slot() const {
    auto result = std::make_shared<Slot>();
    result->data = bucket_.data_ptr();
    result->bytes = kBytes;
    result->keep = bucket_;
    return result;
  }
  // A pass in which the second allocation of its size is the gradient.
  void learn() {
    placement_->begin();
    in_backward([&] {
      const torch::Tensor other = torch::empty({kElements});
      const torch::Tensor gradient = torch::empty({kElements});
      placement_->learn(0, gradient.data_ptr(), kBytes);
    });
    placement_->end();
  }
  bool in_slot(const torch::Tensor& tensor) const { return tensor.data_ptr() == bucket_.data_ptr(); }

  torch::Tensor parameter_;
  torch::Tensor bucket_;
  std::shared_ptr<GradientPlacement> placement_;
};

TEST_F(GradientPlacementTest, AnswersTheLearnedAllocationWithTheSlot) {
  learn();
  for (int pass = 0; pass < 3; ++pass) {
    placement_->begin();
    in_backward([&] {
      const torch::Tensor smaller = torch::empty({kElements - 1});  // another size does not count
      EXPECT_FALSE(in_slot(torch::empty({kElements})));
      EXPECT_TRUE(in_slot(torch::empty({kElements})));
      EXPECT_FALSE(in_slot(torch::empty({kElements})));
    });
    placement_->end();
  }
}

TEST_F(GradientPlacementTest, LearnsANewPlaceWhenTheOldOneWasWrong) {
  learn();
  placement_->begin();
  in_backward([&] {
    const torch::Tensor first = torch::empty({kElements});
    const torch::Tensor wrong = torch::empty({kElements});
    const torch::Tensor gradient = torch::empty({kElements});
    EXPECT_TRUE(in_slot(wrong));
    EXPECT_FALSE(in_slot(gradient)) << "the slot is taken";
    placement_->learn(0, gradient.data_ptr(), kBytes);
  });
  placement_->begin();
  in_backward([&] {
    const torch::Tensor first = torch::empty({kElements});
    EXPECT_FALSE(in_slot(torch::empty({kElements})));
    EXPECT_TRUE(in_slot(torch::empty({kElements})));
  });
}

TEST_F(GradientPlacementTest, NeverHandsOutTheMemoryOfAGradientThatExists) {
  learn();
  parameter_.mutable_grad() = bucket_.narrow(0, 0, kElements);
  placement_->begin();
  in_backward([&] {
    const torch::Tensor first = torch::empty({kElements});
    EXPECT_FALSE(in_slot(torch::empty({kElements})));
  });
}

TEST_F(GradientPlacementTest, CountsBackwardPassesOfItsThreadBetweenBeginAndEndOnly) {
  learn();
  const auto expect_slot = [&](bool expected) {
    in_backward([&] {
      const torch::Tensor first = torch::empty({kElements});
      EXPECT_EQ(in_slot(torch::empty({kElements})), expected);
    });
  };
  expect_slot(false);  // before begin()
  placement_->begin();
  const torch::Tensor activation = torch::empty({kElements});  // not in a backward pass
  EXPECT_FALSE(in_slot(torch::empty({kElements})));
  std::thread([&] { expect_slot(false); }).join();
  expect_slot(true);
  placement_->begin();
  std::thread([&] { placement_->end(); }).join();  // the pass ended in another thread
  expect_slot(false);

  placement_->begin();
  const auto other = std::make_shared<GradientPlacement>(std::vector<torch::Tensor>{parameter_});
  other->begin();
  placement_->end();  // must not end that of the other
  in_backward([&] {
    const torch::Tensor gradient = torch::empty({kElements});
    other->learn(0, gradient.data_ptr(), kBytes);
  });
  other->set_slot(0, slot());
  other->begin();
  in_backward([&] { EXPECT_TRUE(in_slot(torch::empty({kElements}))); });
  other->end();
}

TEST_F(GradientPlacementTest, TwoGradientsThatTradePlacesAreBothFoundAgain) {
  const torch::Tensor second = torch::zeros({kElements}, torch::requires_grad());
  placement_ = std::make_shared<GradientPlacement>(std::vector<torch::Tensor>{parameter_, second});
  const auto pass = [&](std::size_t first, const std::function<void(const torch::Tensor&, const torch::Tensor&)>& see) {
    placement_->begin();
    in_backward([&] {
      const torch::Tensor a = torch::empty({kElements});
      const torch::Tensor b = torch::empty({kElements});
      placement_->learn(first, a.data_ptr(), kBytes);
      placement_->learn(1 - first, b.data_ptr(), kBytes);
      see(a, b);
    });
    placement_->end();
  };
  const auto ignore = [](const torch::Tensor&, const torch::Tensor&) {};
  pass(0, ignore);
  pass(1, ignore);
  auto second_slot = slot();
  second_slot->data = bucket_.data_ptr<float>() + kElements;
  placement_->set_slot(0, slot());
  placement_->set_slot(1, second_slot);
  pass(1, [&](const torch::Tensor& a, const torch::Tensor& b) {
    EXPECT_EQ(a.data_ptr(), second_slot->data);
    EXPECT_TRUE(in_slot(b));
  });
}

// Some libraries use raw_allocate and free the bare address.
TEST_F(GradientPlacementTest, ServesRawAllocations) {
  learn();
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (int pass = 0; pass < 2; ++pass) {
    placement_->begin();
    in_backward([&] {
      void* plain = allocator->raw_allocate(kBytes);
      void* placed = allocator->raw_allocate(kBytes);
      EXPECT_EQ(placed, bucket_.data_ptr());
      allocator->raw_deallocate(placed);
      allocator->raw_deallocate(plain);
    });
    placement_->end();
  }
  void* outside = allocator->raw_allocate(kBytes);
  allocator->raw_deallocate(outside);
  allocator->raw_deallocate(nullptr);
}

TEST_F(GradientPlacementTest, ATensorInASlotOutlivesPlacementAndBucket) {
  learn();
  torch::Tensor kept;
  placement_->begin();
  in_backward([&] {
    const torch::Tensor first = torch::empty({kElements});
    kept = torch::empty({kElements}).fill_(3);
  });
  ASSERT_TRUE(in_slot(kept));
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(bucket_.storage().getWeakStorageImpl());
  placement_->end();
  placement_.reset();
  placement_ = std::make_shared<GradientPlacement>(std::vector<torch::Tensor>{parameter_});
  bucket_ = torch::zeros({2 * kElements});
  EXPECT_FALSE(memory.expired());
  EXPECT_TRUE((kept == 3).all().item<bool>());
  kept.reset();
  EXPECT_TRUE(memory.expired()) << "the bucket is leaked";
}

// A gradient in its own slot must not keep its parameter alive, since that keeps the gradient alive.
TEST_F(GradientPlacementTest, AGradientInItsSlotIsNoCycle) {
  learn();
  placement_->begin();
  in_backward([&] {
    const torch::Tensor first = torch::empty({kElements});
    parameter_.mutable_grad() = torch::empty({kElements});
  });
  placement_->end();
  ASSERT_TRUE(in_slot(parameter_.grad()));
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter(parameter_.getIntrusivePtr());
  placement_ = std::make_shared<GradientPlacement>(std::vector<torch::Tensor>{});
  parameter_ = torch::Tensor();
  EXPECT_TRUE(parameter.expired());
}

}  // namespace
}  // namespace lockstep::nn_detail
