#include "python_optimizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/printable.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

using Options = c10::impl::GenericDict;
using List = c10::impl::GenericList;
using Entries = std::vector<std::pair<c10::IValue, c10::IValue>>;

}  // namespace

const PythonKind& python_kind(std::string_view name) {
  static const std::array kKinds = {
      PythonKind{"SGD", {"dampening", "nesterov"}, {"maximize", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"Adam", {"betas", "amsgrad"}, {"maximize", "capturable", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"AdamW", {"betas", "amsgrad"}, {"maximize", "capturable", "differentiable"}, {"foreach", "fused"}},
      PythonKind{"RMSprop", {"alpha", "centered"}, {"maximize", "capturable", "differentiable"}, {"foreach"}},
      PythonKind{"Adagrad", {"lr_decay"}, {"maximize", "differentiable"}, {"foreach", "fused"}},
  };
  for (const PythonKind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  throw CheckpointError(ErrorCode::kUnsupported,
                        fmt::format("its optimizer is of the unknown kind {:.40}", printable(name)));
}

std::optional<c10::IValue> entry_under(const Options& dict, std::string_view key) {
  const auto found = dict.find(std::string(key));
  return found == dict.end() ? std::nullopt : std::optional<c10::IValue>(found->value());
}

CheckpointError mismatch(const std::string& what) {
  return CheckpointError(ErrorCode::kMismatch, what);
}

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

namespace {

// A parameter of a flat dict.
struct FlatParam {
  std::string name;
  Entries options;
  Entries state;
};

// The keys are "param_groups.NAME.OPTION", in the order of the groups, and "state.NAME.FIELD". Names have dots.
std::vector<FlatParam> flat_params(const Options& flat) {
  std::vector<FlatParam> params;
  std::map<std::string, std::size_t> index_of;
  for (const bool options : {true, false}) {
    const std::string prefix = options ? "param_groups." : "state.";
    for (const auto& entry : flat) {
      if (!entry.key().isString() || !entry.key().toStringRef().starts_with(prefix)) continue;
      const std::string rest = entry.key().toStringRef().substr(prefix.size());
      const std::size_t dot = rest.rfind('.');
      if (dot == std::string::npos) throw mismatch(fmt::format("\"{:.80}\" names no parameter", printable(rest)));
      const auto [found, is_new] = index_of.try_emplace(rest.substr(0, dot), params.size());
      if (is_new && !options) throw mismatch("its state is of a parameter that is in no group");
      if (is_new) params.push_back({found->first, {}, {}});
      FlatParam& param = params[found->second];
      (options ? param.options : param.state).emplace_back(rest.substr(dot + 1), entry.value());
    }
  }
  return params;
}

std::map<std::string, std::string> option_texts(const FlatParam& param) {
  TensorFile file;
  for (const auto& [name, value] : param.options) read_option(file, "", name.toStringRef(), value);
  return file.metadata;
}

}  // namespace

Options with_groups(const Options& flat, const std::vector<std::size_t>& counts) {
  const std::vector<FlatParam> params = flat_params(flat);
  const bool counted = std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == params.size();
  DictGrowth growth;
  List groups(c10::AnyType::get());
  Entries states;
  for (std::size_t at = 0; at < params.size();) {
    const auto texts = option_texts(params[at]);
    const std::size_t most = counted ? at + counts[groups.size()] : params.size();
    std::size_t end = at;
    while (end < most && option_texts(params[end]) == texts) ++end;
    if (counted && end < most) {
      throw mismatch(fmt::format("the parameters of group {} have different options", groups.size()));
    }
    List names(c10::AnyType::get());
    Entries group = params[at].options;
    for (; at < end; ++at) {
      names.push_back(params[at].name);
      if (!params[at].state.empty()) states.emplace_back(params[at].name, growth.make(params[at].state));
    }
    group.emplace_back("params", names);
    groups.push_back(growth.make(group));
  }
  return growth.make({{"state", growth.make(states)}, {"param_groups", groups}});
}

}  // namespace lockstep::checkpoint
