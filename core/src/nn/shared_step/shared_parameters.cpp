#include "shared_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/arithmetic.h"
#include "lockstep/c10d/errors.h"
#include "nn/same_memory.h"

namespace lockstep::nn_detail {
namespace {

constexpr std::size_t kLine = 64;
constexpr const char* kMoved = "; SharedStep needs it as it was when the optimizer was made: make a new optimizer";

std::string name_of(std::size_t group, std::size_t number) {
  return fmt::format("parameter {} of group {}", number, group);
}

// For a flat view of the memory of a dense tensor.
torch::Tensor flat_at(const torch::Tensor& bytes, std::size_t offset, std::int64_t elements, torch::Dtype dtype) {
  torch::Tensor tensor = torch::empty({0}, torch::dtype(dtype));
  const auto first = static_cast<std::int64_t>(offset / c10::elementSize(dtype));
  return tensor.set_(bytes.storage(), first, {elements}, {1});
}

std::uint64_t add_contents(std::uint64_t hash, const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().contiguous();
  const auto* const bytes = static_cast<const std::byte*>(flat.const_data_ptr());
  for (std::size_t at = 0; at < flat.nbytes(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof(word), flat.nbytes() - at));
    hash = mixed(hash, word);
  }
  return hash;
}

void check(const torch::Tensor& tensor, const std::string& name) {
  TORCH_CHECK_VALUE(tensor.defined(), "SharedStep: ", name, " is undefined");
  TORCH_CHECK_VALUE(tensor.is_cpu(), "SharedStep: ", name, " is on ", tensor.device(),
                    "; expected the CPU, whose memory the ranks share (ZeroRedundancyOptimizer takes other devices)");
  TORCH_CHECK_VALUE(tensor.layout() == torch::kStrided, "SharedStep: ", name, " is ", tensor.layout(),
                    "; expected a dense tensor");
  TORCH_CHECK_VALUE(!tensor.is_inference() && !tensor.is_neg() && !tensor.is_conj(), "SharedStep: ", name,
                    " is an inference tensor or a lazy view; expected an ordinary tensor");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "SharedStep: ", name, " of size ", tensor.sizes(),
                    " has strides ", tensor.strides(), ", which leave holes; give the module a contiguous one");
  TORCH_CHECK_VALUE(
      tensor.numel() == 0 || (tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes()),
      "SharedStep: ", name, " has ", tensor.nbytes(), " bytes and is a part of a memory of ", tensor.storage().nbytes(),
      " bytes; expected memory of its own: give the module a clone()");
}

}  // namespace

std::string SharedParameter::name() const {
  return name_of(group, number);
}

std::string SharedParameters::lines(const Groups& groups) {
  std::string text;
  std::map<const void*, std::string> seen;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].params().size(); ++i) {
      const torch::Tensor& tensor = groups[group].params()[i];
      const std::string name = name_of(group, i);
      check(tensor, name);
      const void* const memory =
          tensor.numel() > 0 ? tensor.const_data_ptr() : static_cast<const void*>(tensor.unsafeGetTensorImpl());
      const auto [known, is_new] = seen.emplace(memory, name);
      TORCH_CHECK_VALUE(is_new, "SharedStep: ", name, " shares its memory with ", known->second,
                        "; a tied parameter belongs in one group, once, as in DistributedDataParallel::parameters()");
      text += fmt::format("{}: {} {}, strides {}\n", name, c10::toString(tensor.scalar_type()),
                          c10::str(tensor.sizes()), c10::str(tensor.strides()));
    }
  }
  TORCH_CHECK_VALUE(!seen.empty(), "SharedStep: expected parameters, got none");
  return text;
}

SharedParameters::SharedParameters(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  const Groups& groups = optimizer.param_groups();
  std::size_t end = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].params().size(); ++i) {
      SharedParameter& one = all_.emplace_back();
      one.tensor = groups[group].params()[i];
      one.group = group;
      one.number = i;
      one.sizes = one.tensor.sizes().vec();
      one.strides = one.tensor.strides().vec();
      one.dtype = one.tensor.scalar_type();
      one.elements = one.tensor.numel();
      one.bytes = one.tensor.nbytes();
    }
  }
  // All values lie side by side, then all state: what a kind of optimizer does not use takes no memory.
  for (std::size_t which = 0; which < 1 + kStateTensors; ++which) {
    for (SharedParameter& one : all_) {
      one.places[which] = end;
      end += round_up(one.bytes, kLine);
    }
  }
  view_bytes_ = std::max(round_up(end, comm::PrivateView::page_bytes()), comm::PrivateView::page_bytes());
}

std::size_t SharedParameters::view_offset(std::size_t bytes_in_front) {
  return round_up(bytes_in_front, comm::PrivateView::alignment());
}

void SharedParameters::place(std::shared_ptr<comm::SharedBlock> block, std::size_t bytes_in_front) {
  block_ = std::move(block);
  view_offset_ = view_offset(bytes_in_front);
  auto view = comm::PrivateView::map(*block_, view_offset_, view_bytes_);
  if (!view.ok()) throw_status(view.status(), "SharedStep");
  view_ = std::move(view).value();
  const auto keep = [block = block_](void*) {};
  const torch::Tensor bytes =
      torch::from_blob(block_->base(), {static_cast<std::int64_t>(block_->bytes())}, keep, torch::dtype(torch::kByte));
  for (SharedParameter& one : all_) {
    for (std::size_t which = 0; which < one.places.size(); ++which)
      one.flat[which] = flat_at(bytes, view_offset_ + one.places[which], one.elements, one.dtype);
  }
}

bool SharedParameters::are_current() const {
  std::size_t next = 0;
  const Groups& groups = optimizer_.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const torch::Tensor& tensor : groups[group].params()) {
      if (next == all_.size() || !all_[next].tensor.is_same(tensor) || all_[next].group != group) return false;
      ++next;
    }
  }
  return next == all_.size();
}

torch::optim::OptimizerParamState* SharedParameters::state_of(const SharedParameter& parameter) const {
  const auto found = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

std::byte* SharedParameters::shown(const SharedParameter& parameter, std::size_t which) const {
  return view_->base() + parameter.places[which];
}

torch::Tensor SharedParameters::view_of(const SharedParameter& parameter, std::size_t which) const {
  const auto keep = [view = view_](void*) {};
  return torch::from_blob(shown(parameter, which), parameter.sizes, parameter.strides, keep,
                          torch::dtype(parameter.dtype));
}

// Whether the state is another one than the last step has left.
bool SharedParameters::has_state_elsewhere(const SharedParameter& parameter) const {
  torch::optim::OptimizerParamState* const state = state_of(parameter);
  if ((state != nullptr) != parameter.has_state) return true;
  if (state == nullptr) return false;
  const std::int64_t* const steps = steps_of(*state);
  if (steps != nullptr && *steps != parameter.steps) return true;
  const auto tensors = state_tensors_of(*state);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    const bool defined = tensors[i] != nullptr && tensors[i]->defined();
    if (defined != parameter.has_state_tensor[i]) return true;
    if (defined && parameter.elements > 0 &&
        (tensors[i]->const_data_ptr() != shown(parameter, 1 + i) ||
         !same_strides(parameter.sizes, tensors[i]->strides(), parameter.strides)))
      return true;
  }
  return false;
}

void SharedParameters::check_state(const SharedParameter& parameter) const {
  torch::optim::OptimizerParamState* const state = state_of(parameter);
  if (state == nullptr) return;
  const auto tensors = state_tensors_of(*state);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    const torch::Tensor* const tensor = tensors[i];
    if (tensor == nullptr || !tensor->defined()) continue;
    TORCH_CHECK_VALUE(tensor->is_cpu() && tensor->layout() == torch::kStrided && tensor->sizes() == parameter.sizes &&
                          tensor->scalar_type() == parameter.dtype,
                      "SharedStep: the state of ", parameter.name(), " has a tensor ", tensor->scalar_type(), ' ',
                      tensor->sizes(), " on ", tensor->device(), "; expected ", parameter.dtype, ' ',
                      torch::IntArrayRef(parameter.sizes), " on the CPU, as the parameter");
    const auto* const memory = static_cast<const std::byte*>(tensor->const_data_ptr());
    const bool is_its_own =
        memory == shown(parameter, 1 + i) && same_strides(parameter.sizes, tensor->strides(), parameter.strides);
    TORCH_CHECK_VALUE(
        parameter.elements == 0 || is_its_own || memory < view_->base() || memory >= view_->base() + view_->bytes(),
        "SharedStep: the state of ", parameter.name(),
        " has a tensor in the memory of another one; write into its tensors (copy_), or give clones");
  }
}

bool SharedParameters::has_changed(const SharedParameter& parameter, std::size_t which,
                                   const std::vector<std::size_t>& pages) const {
  const std::size_t begin = parameter.places[which];
  const auto first = std::lower_bound(pages.begin(), pages.end(), begin / comm::PrivateView::page_bytes());
  if (first == pages.end() || *first * comm::PrivateView::page_bytes() >= begin + parameter.bytes) return false;
  return std::memcmp(block_->base() + view_offset_ + begin, shown(parameter, which), parameter.bytes) != 0;
}

SharedParameters::Written SharedParameters::written() {
  Written result;
  result.pages = changed_pages();
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const SharedParameter& one = all_[i];
    TORCH_CHECK_VALUE(one.tensor.is_cpu() && one.tensor.scalar_type() == one.dtype, "SharedStep: ", one.name(), " is ",
                      one.tensor.scalar_type(), " on ", one.tensor.device(), " now", kMoved);
    TORCH_CHECK_VALUE(one.tensor.sizes() == one.sizes, "SharedStep: ", one.name(), " has size ", one.tensor.sizes(),
                      " now, it had ", torch::IntArrayRef(one.sizes), kMoved);
    TORCH_CHECK_VALUE((one.elements == 0 || one.tensor.const_data_ptr() == shown(one, 0)) &&
                          same_strides(one.sizes, one.tensor.strides(), one.strides),
                      "SharedStep: ", one.name(),
                      " got other memory (set_data, torch::load of a module, another SharedStep) since the optimizer "
                      "was made; write into it (copy_), or make a new optimizer afterwards");
    std::uint64_t hash = 1;
    if (has_changed(one, 0, result.pages)) {
      result.values.push_back(i);
      hash = add_contents(hash, one.tensor);
    }
    bool new_state = has_state_elsewhere(one);
    for (std::size_t which = 1; which < one.places.size(); ++which)
      new_state = new_state || (one.has_state_tensor[which - 1] && has_changed(one, which, result.pages));
    if (new_state) {
      check_state(one);
      result.state.push_back(i);
      if (torch::optim::OptimizerParamState* const state = state_of(one)) {
        for (const torch::Tensor* tensor : state_tensors_of(*state))
          hash = tensor != nullptr && tensor->defined() ? add_contents(hash, *tensor) : mixed(hash, 2);
      }
    }
    if (hash != 1 || new_state) result.contents[i] = hash;
  }
  return result;
}

SharedParameters::Written SharedParameters::all() const {
  Written result;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    result.values.push_back(i);
    if (state_of(all_[i]) == nullptr) continue;
    check_state(all_[i]);
    result.state.push_back(i);
  }
  return result;
}

// What was written with the values that were there (a broadcast of rank 0's, averages that were put in and taken back)
// is no change.
std::vector<std::size_t> SharedParameters::changed_pages() {
  auto copies = view_->copied_pages();
  if (!copies.ok()) throw_status(copies.status(), "SharedStep");
  const std::size_t page = comm::PrivateView::page_bytes();
  const std::byte* const shared = block_->base() + view_offset_;
  std::vector<std::size_t> same;
  std::vector<std::size_t> changed;
  for (const std::size_t number : *copies) {
    const bool is_same = std::memcmp(shared + number * page, view_->base() + number * page, page) == 0;
    (is_same ? same : changed).push_back(number);
  }
  if (const Status dropped = view_->drop_copies(same); !dropped.ok()) throw_status(dropped, "SharedStep");
  return changed;
}

std::int64_t SharedParameters::steps_now(std::size_t index) const {
  torch::optim::OptimizerParamState* const state = state_of(all_[index]);
  if (state == nullptr) return -1;
  const std::int64_t* const steps = steps_of(*state);
  return steps == nullptr ? 0 : *steps;
}

void SharedParameters::check_can_step(std::size_t index, const torch::optim::OptimizerOptions& options) const {
  const SharedParameter& one = all_[index];
  torch::optim::OptimizerParamState* const state = state_of(one);
  if (state == nullptr) {
    TORCH_CHECK_VALUE(!needs_state(options), "SharedStep: ", one.name(),
                      " has no state; LibTorch's Adagrad makes it in its constructor alone, and cannot step "
                      "parameters that are added later");
    return;
  }
  const auto used = state_tensors(options);
  const auto tensors = state_tensors_of(*state);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    TORCH_CHECK_VALUE(!used[i] || (tensors[i] != nullptr && tensors[i]->defined()), "SharedStep: the state of ",
                      one.name(), " lacks a tensor that these options need (was amsgrad turned on later?)");
  }
}

void SharedParameters::put(const Written& written) {
  const torch::NoGradGuard no_grad;
  for (const std::size_t index : written.values) {
    const SharedParameter& one = all_[index];
    one.flat[0].as_strided(one.sizes, one.strides, one.flat[0].storage_offset()).copy_(one.tensor.detach());
  }
  for (const std::size_t index : written.state) {
    const SharedParameter& one = all_[index];
    if (state_of(one) == nullptr) continue;
    const auto tensors = state_tensors_of(*state_of(one));
    for (std::size_t i = 0; i < kStateTensors; ++i) {
      if (tensors[i] == nullptr || !tensors[i]->defined()) continue;
      const torch::Tensor& flat = one.flat[1 + i];
      flat.as_strided(one.sizes, one.strides, flat.storage_offset()).copy_(*tensors[i]);
    }
  }
}

// Gives the storage of the parameter other memory, so that all tensors that have this storage go along.
void SharedParameters::move(SharedParameter& parameter) {
  struct Context {
    std::shared_ptr<comm::PrivateView> view;
  };
  const torch::NoGradGuard no_grad;
  void* const memory = shown(parameter, 0);
  (void)parameter.tensor.mutable_data_ptr();  // the storage may be a lazy copy
  parameter.tensor.storage().set_data_ptr_noswap(c10::DataPtr(
      memory, new Context{view_}, [](void* context) { delete static_cast<Context*>(context); },
      torch::Device(torch::kCPU)));
}

void SharedParameters::take(const Written& written) {
  const std::size_t page = comm::PrivateView::page_bytes();
  std::vector<std::size_t> pages = written.pages;
  const auto add = [&](std::size_t place, std::size_t bytes) {
    for (std::size_t number = place / page; number * page < place + bytes; ++number) pages.push_back(number);
  };
  for (const std::size_t index : written.values) {
    if (all_[index].tensor.const_data_ptr() != shown(all_[index], 0)) move(all_[index]);
    add(all_[index].places[0], all_[index].bytes);
  }
  for (const std::size_t index : written.state) {
    SharedParameter& one = all_[index];
    one.has_state_tensor = {};
    torch::optim::OptimizerParamState* const state = state_of(one);
    one.has_state = state != nullptr;
    ++one.version;
    if (state == nullptr) continue;
    if (const std::int64_t* const steps = steps_of(*state)) one.steps = *steps;
    const auto tensors = state_tensors_of(*state);
    for (std::size_t i = 0; i < kStateTensors; ++i) {
      if (tensors[i] == nullptr || !tensors[i]->defined()) continue;
      *tensors[i] = view_of(one, 1 + i);
      one.has_state_tensor[i] = true;
      add(one.places[1 + i], one.bytes);
    }
  }
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  if (const Status dropped = view_->drop_copies(pages); !dropped.ok()) throw_status(dropped, "SharedStep");
}

void SharedParameters::show_state(std::size_t index, const torch::optim::OptimizerOptions& options) {
  SharedParameter& one = all_[index];
  torch::optim::OptimizerParamState* state = state_of(one);
  if (state == nullptr) {
    auto made = empty_state(options);
    if (made == nullptr) return;
    state = made.get();
    optimizer_.state()[one.tensor.unsafeGetTensorImpl()] = std::move(made);
    one.has_state = true;
    one.steps = 0;
  }
  const auto used = state_tensors(options);
  const auto tensors = state_tensors_of(*state);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    if (!used[i] || tensors[i] == nullptr) continue;
    if (!tensors[i]->defined()) *tensors[i] = view_of(one, 1 + i);
    one.has_state_tensor[i] = true;
    tensors[i]->unsafeGetTensorImpl()->bump_version();
  }
  if (std::int64_t* const steps = steps_of(*state)) *steps = ++one.steps;
  if (counts_changes(options)) one.tensor.unsafeGetTensorImpl()->bump_version();
}

std::unique_ptr<torch::optim::OptimizerParamState> SharedParameters::tile_state(std::size_t index, std::int64_t begin,
                                                                                std::int64_t size) const {
  const SharedParameter& one = all_[index];
  torch::optim::OptimizerParamState* const state = state_of(one);
  if (state == nullptr) return nullptr;
  auto result = state->clone();  // shares the tensors
  const auto tensors = state_tensors_of(*result);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    if (tensors[i] != nullptr && tensors[i]->defined()) *tensors[i] = one.flat[1 + i].narrow(0, begin, size);
  }
  return result;
}

void SharedParameters::detach() {
  for (const SharedParameter& one : all_) {
    view_->detach(one.places[0], one.bytes);
    for (std::size_t i = 0; i < kStateTensors; ++i) {
      if (one.has_state_tensor[i]) view_->detach(one.places[1 + i], one.bytes);
    }
  }
}

}  // namespace lockstep::nn_detail
