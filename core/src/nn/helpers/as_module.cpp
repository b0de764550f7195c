#include "lockstep/nn/as_module.h"

#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "nn/check_parameter.h"

namespace lockstep::nn_detail {
namespace {

// A submodule of a view, for the part of a name in front of a dot.
torch::nn::Module& submodule(torch::nn::Module& module, const std::string& name) {
  const auto children = module.named_children();
  if (const auto* const found = children.find(name)) return **found;
  return *module.register_module(name, std::make_shared<torch::nn::Module>("part of a model"));
}

void register_tensor(torch::nn::Module& root, const NamedParameter& one, bool is_parameter) {
  torch::nn::Module* module = &root;
  std::string_view rest = one.name;
  for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
    module = &submodule(*module, std::string(rest.substr(0, dot)));
    rest.remove_prefix(dot + 1);
  }
  if (is_parameter) {
    module->register_parameter(std::string(rest), one.tensor, one.tensor.defined() && one.tensor.requires_grad());
  } else {
    module->register_buffer(std::string(rest), one.tensor);
  }
}

void check_name(const std::string& name, std::set<std::string>& taken) {
  const bool has_empty_part =
      name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos;
  TORCH_CHECK_VALUE(!has_empty_part,
                    "as_module: expected a name for every tensor of the model, with a part before and "
                    "after each dot, got '",
                    name, "'");
  TORCH_CHECK_VALUE(taken.insert(name).second, "as_module: two tensors of the model are named '", name,
                    "'; give each a name of its own, because checkpoints and other ranks know it by its name");
}

bool has_constant_weights(torch::jit::Block& block) {
  return std::any_of(block.nodes().begin(), block.nodes().end(), [](torch::jit::Node* node) {
    for (torch::jit::Block* const inner : node->blocks()) {
      if (has_constant_weights(*inner)) return true;
    }
    if (node->kind() != torch::jit::prim::Constant || !node->hasAttribute(torch::jit::attr::value)) {
      return std::string_view(node->kind().toQualString()) == "prim::ConstantMKLDNNTensor";
    }
    return node->kindOf(torch::jit::attr::value) == torch::jit::AttributeKind::t &&
           node->t(torch::jit::attr::value).is_floating_point();
  });
}

// torch.jit.freeze, which optimize_for_inference calls too, removes `training` and makes weights constants. A model
// that C++ has put together may lack `training`, and a traced model may have constants.
void refuse_frozen(const torch::jit::Module& model) {
  if (model.hasattr("training")) return;
  for (const torch::jit::Method& method : model.get_methods()) {
    TORCH_CHECK_VALUE(!has_constant_weights(*method.graph()->block()), "as_module: the scripted model ",
                      model.type()->name()->qualifiedName(),
                      " was frozen or optimised for inference (torch.jit.freeze, torch.jit.optimize_for_inference): "
                      "its weights are constants of its method ",
                      method.name(),
                      ", and cannot be trained. Export the model as torch.jit.script or torch.jit.trace returns it, "
                      "train it, and freeze it afterwards");
  }
}

// A scripted model or one of its submodules. Submodules have views of their own, because each has its own `training`.
class ScriptedView final : public ModelView {
 public:
  explicit ScriptedView(torch::jit::Module model)
      : ModelView("scripted " + model.type()->name()->qualifiedName()), model_(std::move(model)) {
    add(named_tensors(model_.named_parameters(/*recurse=*/false)), named_tensors(model_.named_buffers(false)));
    for (const auto& child : model_.named_children()) {
      register_module(child.name, std::make_shared<ScriptedView>(child.value));
    }
    seen_ = ScriptedView::tensors_of_model();
  }

  void train(bool on) override { model_.train(on); }
  bool is_training() const noexcept override { return model_.is_training(); }
  // For DataParallel.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override {
    const torch::NoGradGuard no_grad;
    torch::jit::Module copy = model_.deepcopy();
    if (device) copy.to(*device);
    auto result = std::make_shared<ScriptedView>(std::move(copy));
    const std::vector<torch::Tensor> own = parameters();
    std::vector<torch::Tensor> copied = result->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) copied[i].set_requires_grad(own[i].requires_grad());
    return result;
  }
  torch::jit::Module& model() { return model_; }

 private:
  // Without names, which take time.
  std::vector<torch::Tensor> tensors_of_model() const override {
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& one : model_.parameters()) all.push_back(one);
    for (const torch::Tensor& one : model_.buffers()) all.push_back(one);
    return all;
  }

  std::shared_ptr<ModelView> made_again() const override { return std::make_shared<ScriptedView>(model_); }

  torch::jit::Module model_;
};

}  // namespace

void ModelView::add(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers) {
  std::set<std::string> names;
  for (const NamedParameter& one : parameters) {
    check_name(one.name, names);
    if (one.tensor.defined()) check_parameter(one);
    register_tensor(*this, one, /*is_parameter=*/true);
  }
  for (const NamedParameter& one : buffers) {
    check_name(one.name, names);
    register_tensor(*this, one, /*is_parameter=*/false);
  }
}

std::shared_ptr<ModelView> ModelView::renewed() const {
  const std::vector<torch::Tensor> now = tensors_of_model();
  const bool same = std::equal(now.begin(), now.end(), seen_.begin(), seen_.end(),
                               [](const auto& one, const auto& other) { return one.is_same(other); });
  return same ? nullptr : made_again();
}

std::shared_ptr<torch::nn::Module> view_of(const torch::jit::Module& model) {
  refuse_frozen(model);
  return std::make_shared<ScriptedView>(model);
}

torch::jit::Module& scripted_of(torch::nn::Module& view) {
  return dynamic_cast<ScriptedView&>(view).model();
}

}  // namespace lockstep::nn_detail
