// Python's optimizer.state_dict() in terms of optimizer_state.h, which has all rules about options and state.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "number_text.h"
#include "optimizer_fields.h"
#include "optimizer_state.h"

namespace lockstep::checkpoint {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

Dict make_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

struct PythonKind {
  std::string_view name;
  const char* option;                  // one that this kind has, and others lack
  std::vector<const char*> off;        // options that LibTorch lacks, written as False
  std::vector<const char*> automatic;  // options that LibTorch lacks, written as None
};

const PythonKind& python_kind(std::string_view name) {
  static const std::array kKinds = {
      PythonKind{"SGD", "dampening", {"maximize", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"Adam", "betas", {"maximize", "capturable", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"AdamW", "betas", {"maximize", "capturable", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"RMSprop", "alpha", {"maximize", "capturable", "differentiable"}, {"foreach"}},
      PythonKind{"Adagrad", "lr_decay", {"maximize", "differentiable"}, {"foreach", "fused"}},
  };
  for (const PythonKind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  throw CheckpointError(ErrorCode::kInternal, fmt::format("no Python optimizer {}", name));
}

std::string kind_of(const optim::Optimizer& optimizer) {
  std::string name;
  with_kind(optimizer, [&](const auto& kind) { name = kind.name; });
  return name;
}

bool is_flag(std::string_view option) {
  return option == "amsgrad" || option == "nesterov" || option == "centered";
}

// The entries of a map whose names begin with `prefix`, without it.
template <typename Map, typename Each>
void with_prefix(const Map& map, const std::string& prefix, Each each) {
  for (auto entry = map.lower_bound(prefix); entry != map.end() && entry->first.starts_with(prefix); ++entry) {
    each(entry->first.substr(prefix.size()), entry->second);
  }
}

double number(const std::string& text) {
  return number_from_text<double>(text).value();
}

Dict group_dict(const TensorFile& file, std::size_t group, const PythonKind& kind) {
  Dict options = make_dict();
  std::map<std::string, double> betas;
  with_prefix(file.metadata, fmt::format("optimizer.group.{}.", group),
              [&](const std::string& name, const std::string& text) {
                if (name == "beta1" || name == "beta2") {
                  betas[name] = number(text);
                } else if (is_flag(name)) {
                  options.insert(name, text == "1");
                } else {
                  options.insert(name, number(text));
                }
              });
  if (!betas.empty())
    options.insert("betas", c10::ivalue::Tuple::create(std::vector<c10::IValue>{betas["beta1"], betas["beta2"]}));
  for (const char* option : kind.off) options.insert(option, false);
  for (const char* option : kind.automatic) options.insert(option, c10::IValue());
  if (kind.name.starts_with("Adam")) options.insert("decoupled_weight_decay", kind.name == "AdamW");
  return options;
}

// Python counts steps in a tensor of floats.
torch::Tensor step_tensor(const std::string& text) {
  constexpr double kExact = 1 << 24;
  const double steps = number(text);
  return torch::full({}, steps, steps <= kExact ? torch::kFloat : torch::kDouble);
}

Dict param_dict(const TensorFile& file, std::size_t param) {
  const std::string prefix = fmt::format("optimizer.param.{}.", param);
  Dict state = make_dict();
  with_prefix(file.metadata, prefix, [&](const std::string& name, const std::string& text) {
    if (name == "step") state.insert(name, step_tensor(text));
  });
  with_prefix(file.tensors, prefix,
              [&](const std::string& name, const torch::Tensor& tensor) { state.insert(name, tensor); });
  return state;
}

CheckpointError mismatch(const std::string& what) {
  return CheckpointError(ErrorCode::kMismatch, what);
}

std::optional<c10::IValue> find(const Dict& dict, const char* key) {
  const auto found = dict.find(key);
  return found == dict.end() ? std::nullopt : std::optional<c10::IValue>(found->value());
}

Dict dict_at(const c10::IValue& value, const std::string& what) {
  if (!value.isGenericDict()) throw mismatch(fmt::format("{} is no dict, as in Python's optimizer.state_dict()", what));
  return value.toGenericDict();
}

// The text of a number, also of one in a tensor without dimensions; empty for anything else.
std::string number_text(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? "1" : "0";
  if (value.isInt()) return text_of(value.toInt());
  if (value.isDouble()) return text_of(value.toDouble());
  if (value.isTensor() && value.toTensor().numel() == 1 && !value.toTensor().is_complex()) {
    return text_of(value.toTensor().item<double>());
  }
  return "";
}

void read_option(TensorFile& file, const std::string& prefix, const std::string& name, const c10::IValue& value) {
  if (name == "betas") {
    const bool pair = (value.isTuple() && value.toTupleRef().elements().size() == 2) ||
                      (value.isList() && value.toListRef().size() == 2);
    if (!pair) throw CheckpointError(ErrorCode::kCorrupt, fmt::format("{}betas is no pair", prefix));
    const bool tuple = value.isTuple();
    for (std::size_t i = 0; i < 2; ++i) {
      const c10::IValue beta = tuple ? value.toTupleRef().elements()[i] : value.toListRef()[i];
      file.metadata[fmt::format("{}beta{}", prefix, i + 1)] = number_text(beta);
    }
  } else if (const std::string text = number_text(value); !text.empty()) {
    file.metadata[prefix + name] = text;
  }
}

void require_kind(const Dict& group, const PythonKind& kind, std::size_t index) {
  if (!find(group, kind.option)) {
    throw mismatch(fmt::format("its optimizer is no {}: group {} has no option \"{}\"", kind.name, index, kind.option));
  }
  const auto decoupled = find(group, "decoupled_weight_decay");
  if (decoupled && decoupled->isBool() && decoupled->toBool() != (kind.name == "AdamW")) {
    throw mismatch(
        fmt::format("its optimizer is {}, the program's is {}", decoupled->toBool() ? "AdamW" : "Adam", kind.name));
  }
  const auto maximize = find(group, "maximize");
  if (maximize && maximize->isBool() && maximize->toBool()) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("group {} has maximize=True, which LibTorch's optimizers lack", index));
  }
}

// Reads the options; returns Python's numbers of the parameters.
std::vector<std::int64_t> read_group(TensorFile& file, const Dict& group, std::size_t index) {
  const std::string prefix = fmt::format("optimizer.group.{}.", index);
  for (const auto& entry : group) {
    if (entry.key().isString()) read_option(file, prefix, entry.key().toStringRef(), entry.value());
  }
  const auto params = find(group, "params");
  if (!params || !params->isList()) throw mismatch(fmt::format("group {} has no list \"params\"", index));
  std::vector<std::int64_t> numbers;
  for (const c10::IValue& number : params->toListRef()) {
    if (!number.isInt()) throw mismatch(fmt::format("group {} has a parameter that is no number", index));
    numbers.push_back(number.toInt());
  }
  return numbers;
}

std::string step_text(const c10::IValue& value, const std::string& prefix) {
  const auto steps = number_from_text<double>(number_text(value));
  constexpr double kMost = 9007199254740992.0;  // 2^53
  if (!steps || !(*steps >= 0) || *steps > kMost || *steps != std::floor(*steps)) {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("{}step is no count of steps", prefix));
  }
  return text_of(static_cast<std::int64_t>(*steps));
}

void read_param(TensorFile& file, const Dict& state, std::size_t param) {
  const std::string prefix = fmt::format("optimizer.param.{}.", param);
  for (const auto& entry : state) {
    if (!entry.key().isString()) continue;
    const std::string& name = entry.key().toStringRef();
    if (name == "step") {
      file.metadata[prefix + name] = step_text(entry.value(), prefix);
    } else if (entry.value().isTensor() && entry.value().toTensor().defined()) {
      file.tensors[prefix + name] = entry.value().toTensor();
    }
  }
}

}  // namespace

c10::IValue state_dict(const torch::optim::Optimizer& optimizer) {
  TensorFile file;
  add_optimizer(file, optimizer);
  const PythonKind& kind = python_kind(file.metadata.at("optimizer.type"));
  List groups(c10::AnyType::get());
  Dict states = make_dict();
  std::int64_t param = 0;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    Dict options = group_dict(file, group, kind);
    List params(c10::AnyType::get());
    for (std::size_t i = 0; i < optimizer.param_groups()[group].params().size(); ++i, ++param) {
      params.push_back(param);
      const Dict state = param_dict(file, static_cast<std::size_t>(param));
      if (!state.empty()) states.insert(param, state);
    }
    options.insert("params", params);
    groups.push_back(options);
  }
  Dict all = make_dict();
  all.insert("state", states);
  all.insert("param_groups", groups);
  return all;
}

void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state) {
  const PythonKind& kind = python_kind(kind_of(optimizer));
  const Dict all = dict_at(state, "the optimizer's state");
  const auto states = find(all, "state");
  const auto groups = find(all, "param_groups");
  if (!states || !groups || !groups->isList()) {
    throw mismatch("it is no optimizer's state: \"state\" or \"param_groups\" is missing");
  }
  TensorFile file;
  std::map<std::int64_t, std::size_t> index_of;
  std::vector<std::size_t> counts;
  for (const c10::IValue& value : groups->toListRef()) {
    const Dict group = dict_at(value, fmt::format("group {}", counts.size()));
    require_kind(group, kind, counts.size());
    const std::vector<std::int64_t> numbers = read_group(file, group, counts.size());
    for (const std::int64_t number : numbers) {
      if (!index_of.emplace(number, index_of.size()).second) {
        throw mismatch(fmt::format("parameter {} is in two places of its groups", number));
      }
    }
    counts.push_back(numbers.size());
  }
  file.metadata["optimizer.type"] = kind.name;
  file.metadata["optimizer.parameters"] = fmt::format("{}", fmt::join(counts, ","));
  for (const auto& entry : dict_at(*states, "\"state\"")) {
    const auto found = entry.key().isInt() ? index_of.find(entry.key().toInt()) : index_of.end();
    if (found == index_of.end()) throw mismatch("its state is of a parameter that is in no group");
    read_param(file, dict_at(entry.value(), "the state of a parameter"), found->second);
  }
  restore_optimizer(file, optimizer);
}

}  // namespace lockstep::checkpoint
