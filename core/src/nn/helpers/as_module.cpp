#include "lockstep/nn/as_module.h"

#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "nn/check_parameter.h"
#include "nn/helpers/named_gradients.h"
#include "nn/same_memory.h"

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
    watch_own_slots();
    for (const auto& child : model_.named_children()) {
      const auto view = std::make_shared<ScriptedView>(child.value);
      register_module(child.name, view);
      objects_.insert(objects_.end(), view->objects_.begin(), view->objects_.end());
      slots_.insert(slots_.end(), view->slots_.begin(), view->slots_.end());
    }
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
  // A place of a parameter, buffer or submodule in an object of the interpreter, and what was there. This view and its
  // submodules keep all of them alive, so an equal address is the same tensor or object.
  struct Slot {
    const c10::ivalue::Object* object;
    std::size_t index;
    const void* value;  // null: none, as for a parameter that is None
  };
  struct Size {
    const c10::ivalue::Object* object;
    std::size_t slots;
  };

  static const void* address_of(const torch::IValue& value) {
    if (value.isTensor()) return value.toTensor().unsafeGetTensorImpl();
    return value.isObject() ? &value.toObjectRef() : nullptr;
  }

  void watch_own_slots() {
    const c10::ivalue::Object* const object = model_._ivalue().get();
    const auto type = model_.type();
    objects_.push_back({object, object->slots().size()});
    for (std::size_t i = 0; i < object->slots().size(); ++i) {
      if (!type->is_parameter(i) && !type->is_buffer(i) && !type->getAttribute(i)->is_module()) continue;
      slots_.push_back({object, i, address_of(object->getSlot(i))});
    }
  }

  // Without names, types and counts of references, which would take longer than some models' layers.
  bool is_current() const override {
    return std::all_of(objects_.begin(), objects_.end(),
                       [](const Size& one) { return one.object->slots().size() == one.slots; }) &&
           std::all_of(slots_.begin(), slots_.end(),
                       [](const Slot& one) { return address_of(one.object->getSlot(one.index)) == one.value; });
  }

  void take_tensors() override { *this = ScriptedView(model_); }

  torch::jit::Module model_;
  std::vector<Size> objects_;  // of this module and all inside it
  std::vector<Slot> slots_;
};

}  // namespace

void refuse_copies(const std::string& name, bool is_parameter) {
  const char* const function = is_parameter ? "named_parameters" : "named_buffers";
  TORCH_CHECK_VALUE(false, "as_module: ", function, "() of the model returned another tensor '", name,
                    "' in a second call, probably a copy, so changes of its values would not reach the model. Return "
                    "the tensors that the model computes with, not detach() or clone() of them");
}

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

// For its users a view is the model, so that it catches up with the model is no change of the view.
std::uint64_t ModelView::follow() const {
  if (!is_current()) {
    auto& self = const_cast<ModelView&>(*this);
    const std::uint64_t times = times_taken_ + 1;
    self.take_tensors();
    self.times_taken_ = times;
  }
  return times_taken_;
}

bool are_the_same_buffer(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.is_same(b)) return true;
  const auto has_memory = [](const torch::Tensor& tensor) { return tensor.defined() && tensor.has_storage(); };
  return has_memory(a) && has_memory(b) && a.device() == b.device() && a.is_alias_of(b) && same_memory(a, b);
}

std::shared_ptr<torch::nn::Module> view_of(const torch::jit::Module& model) {
  refuse_frozen(model);
  return std::make_shared<ScriptedView>(model);
}

torch::jit::Module& scripted_of(torch::nn::Module& view) {
  return dynamic_cast<ScriptedView&>(view).model();
}

}  // namespace lockstep::nn_detail

std::vector<torch::Tensor> lockstep::distinct_parameters(const torch::nn::Module& module) {
  return nn_detail::without_names(nn_detail::distinct_parameters(module));
}
