#include "checkpoint/state/optimizer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "base/number_text.h"
#include "checkpoint/file/tensor_rules.h"
#include "lockstep/checkpoint/errors.h"
#include "optimizer_fields.h"
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

// `parameter`: the one whose state is written; undefined for options.
class FieldWriter {
 public:
  FieldWriter(TensorFile& file, std::string prefix, torch::Tensor parameter)
      : file_(file), prefix_(std::move(prefix)), parameter_(std::move(parameter)) {}
  void operator()(const char* name, double value) { file_.metadata[prefix_ + name] = text_of(value); }
  void operator()(const char* name, bool value) { file_.metadata[prefix_ + name] = value ? "1" : "0"; }
  void operator()(const char* name, std::int64_t value) { file_.metadata[prefix_ + name] = text_of(value); }
  void operator()(const char* name, const torch::Tensor& value, bool needed) {
    if (value.defined()) {
      file_.tensors[prefix_ + name] = value.detach();
      note_strides(file_, prefix_ + name, parameter_);
    } else if (needed) {
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            fmt::format("{}{} is undefined, but the optimizer's options need it", prefix_, name));
    }
  }

 private:
  TensorFile& file_;
  std::string prefix_;
  torch::Tensor parameter_;
};

// `like`: the parameter whose state is read; undefined for options.
class FieldReader {
 public:
  FieldReader(const TensorFile& file, std::string prefix, torch::Tensor like)
      : file_(file), prefix_(std::move(prefix)), like_(std::move(like)) {}
  void operator()(const char* name, double& value) { value = number<double>(name); }
  void operator()(const char* name, bool& value) {
    const auto number_read = number<std::int64_t>(name);
    if (number_read != 0 && number_read != 1) fail(name, "0 or 1", number_read);
    value = number_read == 1;
  }
  void operator()(const char* name, std::int64_t& value) {
    value = number<std::int64_t>(name);
    if (value < 0 || value > kMostSteps) fail(name, fmt::format("a count from 0 to {}", kMostSteps), value);
  }
  void operator()(const char* name, torch::Tensor& value, bool needed) {
    const auto found = file_.tensors.find(prefix_ + name);
    if (found != file_.tensors.end()) {
      value = state_tensor(name, found->second);
    } else if (needed) {
      throw CheckpointError(ErrorCode::kCorrupt,
                            fmt::format("it lacks {}{}, part of the state of a parameter of shape [{}]", prefix_, name,
                                        fmt::join(like_.sizes(), ", ")));
    }
  }

 private:
  template <typename T>
  T number(const char* name) const {
    const auto found = file_.metadata.find(prefix_ + name);
    const std::optional<T> value = found == file_.metadata.end() ? std::nullopt : number_from_text<T>(found->second);
    if (value) return *value;
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected a number as {}{}, found {}", prefix_, name,
                                                           found == file_.metadata.end() ? "nothing" : found->second));
  }

  [[noreturn]] void fail(const char* name, std::string_view expected, std::int64_t value) const {
    throw CheckpointError(ErrorCode::kCorrupt,
                          fmt::format("expected {} as {}{}, found {}", expected, prefix_, name, value));
  }

  torch::Tensor state_tensor(const char* name, const torch::Tensor& saved) const {
    if (const std::string reason = why_not_saved(saved); !reason.empty()) {
      throw CheckpointError(ErrorCode::kUnsupported, fmt::format("{}{} {}", prefix_, name, reason));
    }
    if (saved.sizes() != like_.sizes()) {
      throw CheckpointError(ErrorCode::kMismatch,
                            fmt::format("{}{} has shape [{}], the parameter [{}]", prefix_, name,
                                        fmt::join(saved.sizes(), ", "), fmt::join(like_.sizes(), ", ")));
    }
    const torch::ScalarType dtype = saved.scalar_type();
    if (saved.is_complex() != like_.is_complex() || !(c10::isFloatingType(dtype) || saved.is_complex())) {
      throw CheckpointError(ErrorCode::kMismatch,
                            fmt::format("{}{} has dtype {}, the parameter {}", prefix_, name, c10::toString(dtype),
                                        c10::toString(like_.scalar_type())));
    }
    // With the parameter's dtype, as Python loads it, and its order of memory, unless another one is noted.
    const torch::NoGradGuard no_grad;
    const auto options = like_.options().requires_grad(false);
    const torch::Tensor noted = with_noted_strides(file_, prefix_ + name);
    return torch::empty_like(noted.defined() ? noted : like_, options, torch::MemoryFormat::Preserve).copy_(saved);
  }

  static constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // exact as a double, which the formulas use

  const TensorFile& file_;
  std::string prefix_;
  torch::Tensor like_;
};

std::string group_prefix(std::size_t group) {
  return fmt::format("optimizer.group.{}.", group);
}
std::string param_prefix(std::size_t param) {
  return fmt::format("optimizer.param.{}.", param);
}

std::string parameters_of(const optim::Optimizer& optimizer) {
  std::vector<std::size_t> counts;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) counts.push_back(group.params().size());
  return fmt::format("{}", fmt::join(counts, ","));
}

void require_same(const TensorFile& file, const std::string& key, const std::string& now, const char* what) {
  const auto saved = file.metadata.find(key);
  if (saved == file.metadata.end()) throw CheckpointError(ErrorCode::kMismatch, "it holds no optimizer");
  if (saved->second == now) return;
  throw CheckpointError(
      ErrorCode::kMismatch,
      fmt::format("its optimizer has {} {:.100}, the program's has {}: make the same optimizer for the "
                  "same model before restoring",
                  what, saved->second, now));
}

bool has_state(const TensorFile& file, const std::string& prefix) {
  const auto begins_in = [&](const auto& entries) {
    const auto first = entries.lower_bound(prefix);
    return first != entries.end() && first->first.starts_with(prefix);
  };
  return begins_in(file.tensors) || begins_in(file.metadata);
}

struct RequireFinite {
  void operator()(const char* name, double value) const {
    if (!std::isfinite(value)) throw CheckpointError(code, fmt::format("{}{} is {}", prefix, name, value));
  }
  void operator()(const char*, bool) const {}
  std::string prefix;
  ErrorCode code;
};

// Throws `code` for options that LibTorch's constructors refuse. Any finite rate is valid: schedulers set them
// unchecked.
template <typename K>
void require_valid(typename K::Options options, const std::string& prefix, ErrorCode code) {
  const RequireFinite finite{prefix, code};
  visit(options, finite);
  options.lr(0);
  try {
    typename K::Optimizer(std::vector<optim::OptimizerParamGroup>(), options);
  } catch (const c10::Error& error) {
    throw CheckpointError(code, fmt::format("options {}*: {}", prefix, error.what_without_backtrace()));
  }
}

template <typename K>
void add_kind(TensorFile& file, const optim::Optimizer& optimizer, const K& kind) {
  file.metadata["optimizer.type"] = kind.name;
  file.metadata["optimizer.parameters"] = parameters_of(optimizer);
  std::size_t param = 0;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const optim::OptimizerParamGroup& params = optimizer.param_groups()[group];
    FieldWriter options_writer(file, group_prefix(group), {});
    auto options = static_cast<const typename K::Options&>(params.options());
    require_valid<K>(options, group_prefix(group), ErrorCode::kInvalidArgument);
    visit(options, options_writer);
    for (const torch::Tensor& tensor : params.params()) {
      FieldWriter writer(file, param_prefix(param++), tensor);
      const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto state = static_cast<const typename K::State&>(*found->second);
      visit(state, options, writer);
    }
  }
}

template <typename K>
void restore_kind(const TensorFile& file, optim::Optimizer& optimizer, const K& kind) {
  require_same(file, "optimizer.type", kind.name, "type");
  require_same(file, "optimizer.parameters", parameters_of(optimizer), "parameters by group");
  std::vector<std::unique_ptr<typename K::Options>> options;
  std::remove_reference_t<decltype(optimizer.state())> states;
  std::size_t param = 0;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optim::OptimizerParamGroup& params = optimizer.param_groups()[group];
    FieldReader options_reader(file, group_prefix(group), {});
    options.push_back(std::make_unique<typename K::Options>(static_cast<typename K::Options&>(params.options())));
    visit(*options.back(), options_reader);
    require_valid<K>(*options.back(), group_prefix(group), ErrorCode::kCorrupt);
    for (const torch::Tensor& tensor : params.params()) {
      const std::string prefix = param_prefix(param++);
      void* const key = tensor.unsafeGetTensorImpl();
      const bool needed = K::kStateFromTheStart && optimizer.state().find(key) != optimizer.state().end();
      if (!needed && !has_state(file, prefix)) continue;
      FieldReader reader(file, prefix, tensor);
      auto state = std::make_unique<typename K::State>();
      visit(*state, *options.back(), reader);
      states[key] = std::move(state);
    }
  }
  // Nothing can fail from here on.
  for (std::size_t group = 0; group < options.size(); ++group) {
    optimizer.param_groups()[group].set_options(std::move(options[group]));
  }
  states.max_load_factor(optimizer.state().max_load_factor());  // the mark of its schedulers (lr_scheduler.cpp)
  optimizer.state().swap(states);
}

}  // namespace

void note_strides(TensorFile& file, const std::string& name, const torch::Tensor& parameter) {
  const torch::Tensor& tensor = file.tensors.at(name);
  if (!why_not_saved(tensor).empty() || tensor.dim() < 2 || tensor.numel() == 0) return;
  if (!tensor.is_non_overlapping_and_dense()) return;
  if (parameter.defined() && tensor.is_contiguous() && tensor.strides() == parameter.strides()) return;
  file.metadata[name + ".strides"] = fmt::format("{}", fmt::join(tensor.strides(), ","));
}

torch::Tensor with_noted_strides(const TensorFile& file, const std::string& name) {
  const auto noted = file.metadata.find(name + ".strides");
  if (noted == file.metadata.end()) return {};
  const torch::Tensor& tensor = file.tensors.at(name);
  std::vector<std::int64_t> strides;
  std::map<std::int64_t, std::int64_t> size_of;  // by the stride; those of one element may have any
  const std::string& text = noted->second;
  for (std::string_view rest = text;; rest.remove_prefix(rest.find(',') + 1)) {
    strides.push_back(number_from_text<std::int64_t>(rest.substr(0, rest.find(','))).value_or(-1));
    if (rest.find(',') == std::string_view::npos) break;
  }
  std::int64_t next = 1;
  bool dense = strides.size() == static_cast<std::size_t>(tensor.dim());
  for (std::size_t i = 0; dense && i < strides.size(); ++i) {
    const std::int64_t size = tensor.size(static_cast<std::int64_t>(i));
    dense = strides[i] >= 0 && (size == 1 || size_of.emplace(strides[i], size).second);
  }
  for (const auto& [stride, size] : size_of) {
    dense = dense && stride == next;
    next *= size;
  }
  if (dense) return torch::empty_strided(tensor.sizes(), strides, tensor.options());
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected the strides of a dense tensor of shape [{}] as {}, "
                                                         "found {:.100}",
                                                         fmt::join(tensor.sizes(), ", "), noted->first, text));
}

void add_optimizer(TensorFile& file, const optim::Optimizer& optimizer) {
  TensorFile with_optimizer = file;  // an error leaves `file` as it was
  const auto of_optimizer = [](const auto& entry) { return entry.first.starts_with("optimizer."); };
  std::erase_if(with_optimizer.tensors, of_optimizer);
  std::erase_if(with_optimizer.metadata, of_optimizer);
  with_kind(optimizer, [&](const auto& kind) { add_kind(with_optimizer, optimizer, kind); });
  file = std::move(with_optimizer);
}

void restore_optimizer(const TensorFile& file, optim::Optimizer& optimizer) {
  with_kind(optimizer, [&](const auto& kind) { restore_kind(file, optimizer, kind); });
}

}  // namespace lockstep::checkpoint
