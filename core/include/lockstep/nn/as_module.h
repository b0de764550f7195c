// as_module: any model as a torch::nn::Module, which is what the rest of Lockstep takes.
//
//   torch::jit::Module net = torch::jit::load("net.pt");       // exported by Python
//   const auto model = lockstep::as_module(net);               // the same tensors, under the same names
//   lockstep::DistributedDataParallel ddp(net);                // wrappers and the Trainer take the model itself
//   torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
//   lockstep::ExponentialMovingAverage average(*model);
//   checkpoint.add_model(*model);
//
// A model is one of these, a shared_ptr to it, or a holder of it:
//   - a torch::nn::Module, also in an AnyModule. as_module() returns that module.
//   - a torch::jit::Module that torch.jit.script or torch.jit.trace has made. Parameters, buffers and submodules have
//     the names of Python's state_dict(). The module's train(), eval() and is_training() call the model's functions.
//   - any object that names its tensors:
//
//       struct Line {
//         torch::Tensor weight = torch::zeros({3, 1}).requires_grad_();
//         std::vector<lockstep::NamedParameter> named_parameters() const { return {{"weight", weight}}; }
//         torch::Tensor forward(const torch::Tensor& x) const { return x.matmul(weight); }
//       };
//
//     Its named_parameters(), and its named_buffers() if it has some, return any range of names and tensors (pairs, a
//     map, NamedParameter, an OrderedDict). A name may have dots: "layer.weight" is in a submodule "layer". If the
//     object has train(bool) and is_training(), the module calls them.
//
// The result shares the model's tensors: it copies no values, and changes of values are seen on both sides. The model
// may put other tensors in the place of its own (setattr of a torch::jit::Module, a struct's `weight = ...`). The
// result takes them when Lockstep uses it next, also where it is a part of another module: in a pass of a wrapper, in
// state_dict(), Checkpoint, clip_grad_norm_, ExponentialMovingAverage. LibTorch's own functions, such as parameters()
// of the result, show the tensors of the last such use. An optimizer has the parameters that it was made with: give it
// the new ones. An object that is passed as an lvalue must outlive the result, except a torch::jit::Module or a holder.
//
// Not collective. Returns null for a null pointer and for an empty holder. Throws a c10::ValueError for
//   - a scripted model that was frozen or optimised for inference: its weights are constants of its code
//   - two tensors of one name, and a name that is empty or has an empty part
//   - a parameter that is no leaf, or is on the meta device
//   - an object whose named_parameters() returns other tensors in each call, or whose named_buffers() returns copies:
//     such copies are not the tensors that the model uses. A buffer may be a view of the model's memory that is made in
//     each call.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/shown_model.h"
#include "lockstep/nn/module_of.h"
#include "lockstep/nn/reducer.h"

namespace lockstep {

template <typename Model>
concept HasNamedTensors = requires(Model& model) {
  model.named_parameters().begin();
};

namespace nn_detail {

// What as_module() makes of a model that is no torch::nn::Module.
class ModelView : public torch::nn::Module, public ShownModel {
 public:
  std::uint64_t follow() const final;

 protected:
  explicit ModelView(std::string name) : torch::nn::Module(std::move(name)) {}
  void add(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers);
  // Whether the model has the tensors that this view has. Called in each pass.
  virtual bool is_current() const = 0;
  // Makes this view anew.
  virtual void take_tensors() = 0;

 private:
  std::uint64_t times_taken_ = 0;
};

// Throws for an object whose functions return other tensors in each call.
[[noreturn]] void refuse_copies(const std::string& name, bool is_parameter);

// Whether changes of values of the one are seen in the other: the same tensor, or two views of the same memory.
bool are_the_same_buffer(const torch::Tensor& a, const torch::Tensor& b);

std::shared_ptr<torch::nn::Module> view_of(const torch::jit::Module& model);
// The model that view_of() was called with, or a copy of it that clone() has made.
torch::jit::Module& scripted_of(torch::nn::Module& view);

// Calls visit(name, tensor) for each item.
template <typename Range, typename Visit>
void for_each_named(const Range& range, const Visit& visit) {
  for (const auto& item : range) {
    if constexpr (requires { item.key(); }) {
      visit(item.key(), item.value());
    } else {
      const auto& [name, tensor] = item;
      visit(name, tensor);
    }
  }
}

template <typename Range>
std::vector<NamedParameter> named_tensors(const Range& range) {
  std::vector<NamedParameter> result;
  for_each_named(range, [&](const auto& name, const torch::Tensor& tensor) {
    result.push_back({std::string(name), tensor});
  });
  return result;
}

template <typename Model>
class ObjectView final : public ModelView {
 public:
  explicit ObjectView(std::shared_ptr<Model> model)
      : ModelView("model with named tensors"),
        model_(std::move(model)),
        parameters_(named_tensors(model_->named_parameters())),
        buffers_(buffers_of(*model_)) {
    add(parameters_, buffers_);
    if (const auto changed = first_change()) refuse_copies(changed->name, changed->is_parameter);
  }
  void train(bool on) override {
    torch::nn::Module::train(on);
    if constexpr (requires { model_->train(on); }) model_->train(on);
  }
  bool is_training() const noexcept override {
    if constexpr (requires { bool{model_->is_training()}; }) {
      return model_->is_training();
    } else {
      return torch::nn::Module::is_training();
    }
  }

 private:
  struct Change {
    std::string name;
    bool is_parameter;
  };
  std::optional<Change> first_change() const {
    std::optional<Change> found;
    const auto compare = [&](const auto& range, const std::vector<NamedParameter>& seen, bool is_parameter) {
      std::size_t next = 0;
      for_each_named(range, [&](const auto& name, const torch::Tensor& tensor) {
        const bool same = next < seen.size() && (is_parameter ? seen[next].tensor.is_same(tensor)
                                                              : are_the_same_buffer(seen[next].tensor, tensor));
        if (!same && !found) found = Change{std::string(name), is_parameter};
        ++next;
      });
      if (next < seen.size() && !found) found = Change{seen[next].name, is_parameter};
    };
    compare(model_->named_parameters(), parameters_, /*is_parameter=*/true);
    if constexpr (kHasBuffers) compare(model_->named_buffers(), buffers_, /*is_parameter=*/false);
    return found;
  }
  bool is_current() const override { return !first_change(); }
  void take_tensors() override {
    const bool on = torch::nn::Module::is_training();
    *this = ObjectView(model_);
    torch::nn::Module::train(on);
  }

  static constexpr bool kHasBuffers = requires(Model & model) { model.named_buffers(); };
  static std::vector<NamedParameter> buffers_of(Model& model) {
    if constexpr (kHasBuffers) {
      return named_tensors(model.named_buffers());
    } else {
      return {};
    }
  }
  std::shared_ptr<Model> model_;
  std::vector<NamedParameter> parameters_;  // when this view took them
  std::vector<NamedParameter> buffers_;
};

}  // namespace nn_detail

template <typename Model>
std::shared_ptr<torch::nn::Module> as_module(const std::shared_ptr<Model>& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    return model;
  } else if constexpr (std::is_same_v<torch::nn::AnyModule, Model>) {
    return model && !model->is_empty() ? model->ptr() : nullptr;
  } else if constexpr (std::is_base_of_v<torch::jit::Module, Model>) {
    return model ? nn_detail::view_of(*model) : nullptr;
  } else {
    static_assert(HasNamedTensors<Model>,
                  "this type is no model: expected a torch::nn::Module, a torch::jit::Module, or an object with "
                  "named_parameters() that returns names and tensors (lockstep/nn/as_module.h)");
    return model ? std::make_shared<nn_detail::ObjectView<Model>>(model) : nullptr;
  }
}

// The parameters of a module, each once, as Python's Module.parameters() returns them: for the optimizer of a model
// with tied parameters. LibTorch's parameters() repeats a tied parameter, and LibTorch's optimizers then take its step
// twice.
std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module);

template <typename Net>
requires(!std::is_same_v<Net, std::shared_ptr<typename nn_detail::ModelOf<Net>::type>>)
    std::shared_ptr<torch::nn::Module> as_module(Net& net) {
  return as_module(nn_detail::pointer_to(net));
}
// A temporary: a handle, such as what torch::jit::load() returns.
template <typename Net>
requires(nn_detail::kIsHandle<Net> && !std::is_same_v<Net, std::shared_ptr<typename nn_detail::ModelOf<Net>::type>>)
    std::shared_ptr<torch::nn::Module> as_module(const Net& net) {
  Net same = net;
  return as_module(nn_detail::pointer_to(same));
}

}  // namespace lockstep
