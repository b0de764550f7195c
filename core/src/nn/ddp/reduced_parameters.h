// ReducedParameters: the parameters that a reducer reduces, and the hooks by which autograd tells of their gradients.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "buckets.h"
#include "lockstep/nn/reducer.h"
#include "nn/device_backend.h"
#include "parameter_users.h"

namespace lockstep::nn_detail {

struct ReducedParameter {
  std::string name;
  torch::Tensor tensor;
  std::vector<std::int64_t> sizes;  // when the reducer was made
  GradientInfo info;
  int most_arrivals = 1;     // how many gradients it got in one pass, at most
  UsersPtr users = nullptr;  // null until it gets its first hook

  // Whether another reducer reduces this parameter too.
  bool is_shared() const { return users.use_count() > 1; }
};

class ReducedParameters {
 public:
  // Called in a backward pass when parameter `index` has its gradient, which autograd has made of `incoming`.
  using OnGradient = std::function<void(std::size_t index, const torch::Tensor& incoming)>;

  // Leaves out parameters that require no gradient.
  ReducedParameters(std::vector<NamedParameter> parameters, const DeviceBackend& backend, OnGradient on_gradient);

  std::size_t size() const { return all_.size(); }
  ReducedParameter& operator[](std::size_t index) { return all_[index]; }
  const ReducedParameter& operator[](std::size_t index) const { return all_[index]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

  // Hangs hooks on the accumulators of all parameters that have none. `reducer`, in `group`, joins their users.
  void attach_hooks(const ProcessGroup& group, const std::weak_ptr<void>& reducer);
  void detach_hooks();
  // Before a forward pass: gradients will be added up on the stream that is current now.
  void follow_stream();
  // Whether a graph that was computed with the parameters still lives, so that its backward pass may come.
  bool have_graph() const;

  // Whether a parameter has another dtype or device now.
  bool are_converted() const;
  // Throws where a parameter has other sizes now.
  void check_sizes() const;
  // Throws where a parameter or its gradient has other sizes or another dtype or device than the parameter had at
  // first: the layout of the buckets follows from these, here and on other ranks.
  void check_unchanged(std::size_t index) const;

 private:
  using AccumulatorPtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));
  // LibTorch before 2.15 has std::shared_ptr there.
  using WeakAccumulatorPtr =
      std::conditional_t<std::is_same_v<AccumulatorPtr, std::shared_ptr<torch::autograd::Node>>,
                         std::weak_ptr<torch::autograd::Node>, c10::weak_intrusive_ptr<torch::autograd::Node>>;
  struct Hook {
    AccumulatorPtr accumulator;  // null: there is no hook
    std::uintptr_t id = 0;
    std::vector<std::pair<WeakAccumulatorPtr, std::uintptr_t>> former;  // hooks on accumulators of other streams
  };

  [[noreturn]] void throw_changed(const ReducedParameter& parameter, const char* what,
                                  const torch::Tensor& found) const;

  const DeviceBackend& backend_;
  const OnGradient on_gradient_;
  std::vector<ReducedParameter> all_;
  std::vector<Hook> hooks_;  // one for each parameter
};

}  // namespace lockstep::nn_detail
