// A model under DistributedDataParallel and its twin, whose gradients are averaged by hand after each backward pass:
// both must agree, bit for bit unless a test says otherwise.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/nn/average_gradients.h"
#include "lockstep/nn/distributed_data_parallel.h"

namespace lockstep::test {

// Different on every rank and in every step, equal in every run.
inline torch::Tensor random_input(torch::IntArrayRef shape, int step, int rank = -1) {
  auto generator = at::detail::createCPUGenerator(7919 * (step + 1) + (rank < 0 ? get_rank() : rank));
  return torch::randn(shape, generator);
}

struct Closeness {
  double relative = 0;  // 0: bitwise
  double absolute = 0;
};

inline bool agree(const torch::Tensor& a, const torch::Tensor& b, const Closeness& closeness) {
  if (closeness.relative == 0) return torch::equal(a, b);
  return torch::allclose(a, b, closeness.relative, closeness.absolute);
}

// An undefined gradient counts as zero.
inline void expect_same_gradients(const torch::nn::Module& model, const torch::nn::Module& twin,
                                  const std::string& where, const Closeness& closeness = {}) {
  const auto ours = model.named_parameters();
  const auto theirs = twin.named_parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto gradient_of = [](const torch::Tensor& parameter) {
      return parameter.grad().defined() ? parameter.grad().to_dense() : torch::zeros_like(parameter);
    };
    const torch::Tensor a = gradient_of(ours[i].value());
    const torch::Tensor b = gradient_of(theirs[i].value());
    EXPECT_TRUE(agree(a, b, closeness)) << where << ": gradient of " << ours[i].key() << " differs by up to "
                                        << (a - b).abs().max().item<double>();
  }
}

inline void expect_same_bits(const std::vector<torch::Tensor>& ours, const std::vector<torch::Tensor>& theirs,
                             const std::string& where) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << where << ", tensor " << i;
}

inline void expect_equal_on_all_ranks(const std::vector<torch::Tensor>& tensors, const std::string& what,
                                      const ProcessGroup& group = nullptr) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    torch::Tensor first = tensors[i].detach().clone();
    broadcast(first, get_global_rank(group ? group : default_group(), 0), {.group = group});
    EXPECT_TRUE(torch::equal(tensors[i], first)) << what << ' ' << i << " differs from rank 0's";
  }
}

template <typename Holder>
class Twins {
 public:
  // `make` is called twice, with the same seed.
  template <typename Make>
  explicit Twins(Make make, const DistributedDataParallelOptions& options = {})
      : model(seeded(make)), twin(seeded(make)), ddp(model, options), group_(options.process_group) {}

  // One training step on both, without the optimizer: loss(model) and its gradients.
  template <typename Loss>
  void step(Loss loss, const std::string& where, const Closeness& closeness = {}) {
    model->zero_grad();
    twin->zero_grad();
    accumulate(loss, where, closeness);
  }
  // The same, but adds to the gradients.
  template <typename Loss>
  void accumulate(Loss loss, const std::string& where, const Closeness& closeness = {}) {
    ddp->is_training();  // announces the pass
    loss(model).backward();
    loss(twin).backward();
    average_gradients(twin, group_);
    expect_same_gradients(*model, *twin, where, closeness);
  }
  // A step of plain gradient descent on both.
  void descend(double rate = 0.05) {
    const torch::NoGradGuard no_grad;
    for (const auto* net : {&model, &twin}) {
      for (torch::Tensor& parameter : (*net)->parameters()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad().to_dense(), rate);
      }
    }
  }

  Holder model;
  Holder twin;
  DistributedDataParallel<Holder> ddp;

 private:
  template <typename Make>
  static Holder seeded(Make make) {
    torch::manual_seed(1);
    return make();
  }

  ProcessGroup group_;
};

// Starts what every rank's test needs.
struct Rank {
  Rank() { torch::set_num_threads(1); }
  ProcessGroupGuard group;
};

}  // namespace lockstep::test
