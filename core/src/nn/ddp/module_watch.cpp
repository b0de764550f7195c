#include "module_watch.h"

#include <torch/nn/cloneable.h>

#include <algorithm>

// LibTorch's public functions copy a module's lists, with their names. Each Cloneable is a friend of Module, so this
// one may read the lists themselves.
template <>
class torch::nn::Cloneable<lockstep::nn_detail::ModuleWatch> {
 public:
  explicit Cloneable(const Module& module)
      : parameters(module.parameters_.items()), buffers(module.buffers_.items()), children(module.children_.items()) {}
  const std::vector<OrderedDict<std::string, Tensor>::Item>& parameters;
  const std::vector<OrderedDict<std::string, Tensor>::Item>& buffers;
  const std::vector<OrderedDict<std::string, std::shared_ptr<Module>>::Item>& children;
};

namespace lockstep::nn_detail {
namespace {

using Lists = torch::nn::Cloneable<ModuleWatch>;

template <typename Items>
bool are_the_same(const Items& now, const std::vector<torch::Tensor>& known, std::size_t& at) {
  if (now.size() > known.size() - at) return false;
  return std::all_of(now.begin(), now.end(), [&](const auto& item) { return item.value().is_same(known[at++]); });
}

}  // namespace

bool ModuleWatch::is_current(const torch::nn::Module& module) const {
  for (const ShownModel* const view : views_) view->follow();
  Position at;
  return is_the_same(module, at) && at.parameters == parameters_.size() && at.buffers == buffers_.size() &&
         at.parts == parts_.size();
}

bool ModuleWatch::is_the_same(const torch::nn::Module& module, Position& at) const {
  const Lists lists(module);
  if (!are_the_same(lists.parameters, parameters_, at.parameters)) return false;
  if (!are_the_same(lists.buffers, buffers_, at.buffers)) return false;
  return std::all_of(lists.children.begin(), lists.children.end(), [&](const auto& item) {
    const auto& child = item.value();
    if (at.parts == parts_.size() || parts_[at.parts++] != child) return false;
    return child == nullptr || is_the_same(*child, at);
  });
}

void ModuleWatch::look(const torch::nn::Module& module) {
  follow_models(module);
  *this = ModuleWatch();
  if (const auto* const view = dynamic_cast<const ShownModel*>(&module)) views_.push_back(view);
  add(module);
}

void ModuleWatch::add(const torch::nn::Module& module) {
  const Lists lists(module);
  for (const auto& item : lists.parameters) parameters_.push_back(item.value());
  for (const auto& item : lists.buffers) buffers_.push_back(item.value());
  for (const auto& item : lists.children) {
    parts_.push_back(item.value());
    if (item.value() == nullptr) continue;
    if (const auto* const view = dynamic_cast<const ShownModel*>(item.value().get())) views_.push_back(view);
    add(*item.value());
  }
}

}  // namespace lockstep::nn_detail
