#include "optimizer_dict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/number_text.h"
#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/state/optimizer_fields.h"
#include "checkpoint/state/optimizer_state.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "python_optimizers.h"

namespace lockstep::checkpoint {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

Dict make_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

std::string kind_of(const optim::Optimizer& optimizer) {
  std::string name;
  with_kind(optimizer, [&](const auto& kind) { name = kind.name; });
  return name;
}

// Parameters of each group, from "3,2".
std::vector<std::int64_t> counts_in(const std::string& text) {
  constexpr std::int64_t kMostParameters = 1 << 24;
  std::vector<std::int64_t> counts;
  std::int64_t all = 0;
  for (std::size_t begin = 0; begin <= text.size() && !text.empty();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto count = number_from_text<std::int64_t>(std::string_view(text).substr(begin, end - begin));
    if (!count || *count < 0 || *count > kMostParameters - all) {
      throw CheckpointError(ErrorCode::kCorrupt, fmt::format("its optimizer has \"{:.40}\" parameters", text));
    }
    counts.push_back(*count);
    all += *count;
    begin = end + 1;
  }
  return counts;
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
  if (const auto value = number_from_text<double>(text)) return *value;
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected a number in its optimizer, found {:.40}", text));
}

using Entries = std::vector<std::pair<c10::IValue, c10::IValue>>;

Dict group_dict(const TensorFile& file, std::size_t group, const PythonKind& kind, const List& params,
                DictGrowth& growth) {
  Entries options;
  std::map<std::string, double> betas;
  with_prefix(file.metadata, fmt::format("optimizer.group.{}.", group),
              [&](const std::string& name, const std::string& text) {
                if (name == "beta1" || name == "beta2") {
                  betas[name] = number(text);
                } else if (is_flag(name)) {
                  options.emplace_back(name, text == "1");
                } else {
                  options.emplace_back(name, number(text));
                }
              });
  if (!betas.empty())
    options.emplace_back("betas", c10::ivalue::Tuple::create(std::vector<c10::IValue>{betas["beta1"], betas["beta2"]}));
  for (const char* option : kind.off) options.emplace_back(option, false);
  for (const char* option : kind.automatic) options.emplace_back(option, c10::IValue());
  if (kind.name.starts_with("Adam")) options.emplace_back("decoupled_weight_decay", kind.name == "AdamW");
  options.emplace_back("params", params);
  return growth.make(options);
}

// Python counts steps in a tensor of floats.
torch::Tensor step_tensor(const std::string& text) {
  constexpr double kExact = 1 << 24;
  const double steps = number(text);
  return torch::full({}, steps, steps <= kExact ? torch::kFloat : torch::kDouble);
}

std::optional<Dict> param_dict(const TensorFile& file, std::size_t param, DictGrowth& growth) {
  const std::string prefix = fmt::format("optimizer.param.{}.", param);
  Entries state;
  with_prefix(file.metadata, prefix, [&](const std::string& name, const std::string& text) {
    if (name == "step") state.emplace_back(name, step_tensor(text));
  });
  with_prefix(file.tensors, prefix, [&](const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor ordered = with_noted_strides(file, prefix + name);
    state.emplace_back(name, ordered.defined() ? ordered.copy_(tensor) : tensor);
  });
  if (state.empty()) return std::nullopt;
  return growth.make(state);
}

Dict dict_at(const c10::IValue& value, const std::string& what) {
  if (!value.isGenericDict()) throw mismatch(fmt::format("{} is no dict, as in Python's optimizer.state_dict()", what));
  return value.toGenericDict();
}

void require_kind(const Dict& group, const PythonKind& kind, std::size_t index) {
  for (const std::string_view option : kind.own) {
    if (entry_under(group, option)) continue;
    throw mismatch(fmt::format("its optimizer is no {}: group {} has no option \"{}\"", kind.name, index, option));
  }
  const auto decoupled = entry_under(group, "decoupled_weight_decay");
  if (decoupled && decoupled->isBool() && decoupled->toBool() != (kind.name == "AdamW")) {
    throw mismatch(
        fmt::format("its optimizer is {}, the program's is {}", decoupled->toBool() ? "AdamW" : "Adam", kind.name));
  }
  const auto maximize = entry_under(group, "maximize");
  if (maximize && maximize->isBool() && maximize->toBool()) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("group {} has maximize=True, which LibTorch's optimizers lack", index));
  }
}

// The key of a parameter as text. Python numbers parameters; torch.distributed.checkpoint.state_dict names them.
std::string param_key(const c10::IValue& key) {
  if (key.isInt()) return text_of(key.toInt());
  return key.isString() ? key.toStringRef() : "";
}

// Reads the options; returns the keys of the parameters.
std::vector<std::string> read_group(TensorFile& file, const Dict& group, std::size_t index) {
  const std::string prefix = fmt::format("optimizer.group.{}.", index);
  for (const auto& entry : group) {
    if (!entry.key().isString() || entry.key().toStringRef() == "params") continue;
    read_option(file, prefix, entry.key().toStringRef(), entry.value());
  }
  const auto params = entry_under(group, "params");
  if (!params || !params->isList()) throw mismatch(fmt::format("group {} has no list \"params\"", index));
  std::vector<std::string> keys;
  for (const c10::IValue& key : params->toListRef()) {
    keys.push_back(param_key(key));
    if (keys.back().empty()) throw mismatch(fmt::format("group {} has a parameter without number or name", index));
  }
  return keys;
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
    const c10::IValue& value = entry.value();
    const std::string name = entry.key().isString() ? entry.key().toStringRef() : "";
    if (name == "step") {
      file.metadata[prefix + name] = step_text(value, prefix);
    } else if (value.isTensor() && value.toTensor().defined() && !name.empty()) {
      file.tensors[prefix + name] = value.toTensor();
      if (file.metadata.at("optimizer.type") == "SGD") note_strides(file, prefix + name, {});
    }
  }
}

}  // namespace

c10::IValue python_optimizer(const TensorFile& file) {
  const auto type = file.metadata.find("optimizer.type");
  const auto parameters = file.metadata.find("optimizer.parameters");
  if (type == file.metadata.end() || parameters == file.metadata.end()) throw mismatch("it holds no optimizer");
  const PythonKind& kind = python_kind(type->second);
  List groups(c10::AnyType::get());
  Dict states = make_dict();
  std::int64_t param = 0;
  DictGrowth growth;
  for (const std::int64_t count : counts_in(parameters->second)) {
    List params(c10::AnyType::get());
    for (std::int64_t i = 0; i < count; ++i, ++param) {
      params.push_back(param);
      const std::optional<Dict> state = param_dict(file, static_cast<std::size_t>(param), growth);
      if (state) states.insert(param, *state);
    }
    groups.push_back(group_dict(file, groups.size(), kind, params, growth));
  }
  Dict all = make_dict();
  all.insert("state", states);
  all.insert("param_groups", groups);
  return all;
}

void add_python_optimizer(TensorFile& file, const c10::IValue& state, std::string_view kind) {
  const Dict all = dict_at(state, "the optimizer's state");
  const auto states = entry_under(all, "state");
  const auto groups = entry_under(all, "param_groups");
  if (!groups || !groups->isList()) {
    throw mismatch(
        "it is no optimizer's state: \"param_groups\" is missing. Where the keys begin with \"param_groups.\" it is a "
        "flat one: load it in Python by set_optimizer_state_dict() with flatten_optimizer_state_dict=True, and save "
        "optimizer.state_dict()");
  }
  std::map<std::string, std::size_t> index_of;
  std::vector<std::size_t> counts;
  for (const c10::IValue& value : groups->toListRef()) {
    const Dict group = dict_at(value, fmt::format("group {}", counts.size()));
    require_kind(group, python_kind(kind), counts.size());
    const std::vector<std::string> keys = read_group(file, group, counts.size());
    for (const std::string& key : keys) {
      if (!index_of.emplace(key, index_of.size()).second) {
        throw mismatch(fmt::format("parameter {} is in two places of its groups", printable(key)));
      }
    }
    counts.push_back(keys.size());
  }
  file.metadata["optimizer.type"] = kind;
  file.metadata["optimizer.parameters"] = fmt::format("{}", fmt::join(counts, ","));
  // An optimizer without state (SGD without momentum, or before the first step) has an empty dict there. A file of
  // dcp_to_torch leaves out empty dicts.
  std::set<std::size_t> read;
  for (const auto& entry : states ? dict_at(*states, "\"state\"") : make_dict()) {
    const auto found = index_of.find(param_key(entry.key()));
    if (found == index_of.end()) throw mismatch("its state is of a parameter that is in no group");
    if (!read.insert(found->second).second) {  // 0 and "0"
      throw mismatch(fmt::format("it has two states of parameter {}", printable(found->first)));
    }
    read_param(file, dict_at(entry.value(), "the state of a parameter"), found->second);
  }
}

c10::IValue state_dict(const torch::optim::Optimizer& optimizer) {
  TensorFile file;
  add_optimizer(file, optimizer);
  return python_optimizer(file);
}

void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state) {
  TensorFile file;
  add_python_optimizer(file, state, kind_of(optimizer));
  restore_optimizer(file, optimizer);
}

}  // namespace lockstep::checkpoint
