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
#include "checkpoint/python/pickle_names.h"
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

// What Python alone has of group or parameter `what`, noted when a dict of Python was added.
std::optional<Dict> noted(const TensorFile& file, const std::string& what, DictGrowth& growth) {
  const auto found = file.metadata.find("optimizer.python." + what);
  if (found == file.metadata.end()) return std::nullopt;
  const c10::IValue value = in_context(found->first, [&] { return value_of_text(found->second, growth); });
  if (value.isGenericDict()) return value.toGenericDict();
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected a dict as {}", found->first));
}

void append(Entries& entries, const Dict& more) {
  for (const auto& entry : more) entries.emplace_back(entry.key(), entry.value());
}

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
  if (const auto of_python = noted(file, fmt::format("group.{}", group), growth)) {
    append(options, *of_python);
  } else {
    for (const char* option : kind.off) options.emplace_back(option, false);
    for (const char* option : kind.automatic) options.emplace_back(option, c10::IValue());
    if (kind.name.starts_with("Adam")) options.emplace_back("decoupled_weight_decay", kind.name == "AdamW");
  }
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
  const std::optional<Dict> of_python = noted(file, fmt::format("param.{}", param), growth);
  if (of_python) append(state, *of_python);
  if (state.empty() && !of_python) return std::nullopt;
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

// Notes what of a dict Python alone has, and in lines what has no place.
class PythonNotes {
 public:
  PythonNotes(PythonLines* lines, std::string place) : lines_(lines), place_(std::move(place)) {}

  // An entry that stays in the dict. `is_number`: C++ reads it as a number.
  void add(const c10::IValue& key, const c10::IValue& value, bool is_number) {
    if (lines_ == nullptr) return;
    try {
      text_of_value(value);  // refuses what no value can be
      entries_.insert(key, value);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      is_number ? say("changed", key, "a tensor became a number") : say("left out", key, error.what());
    }
  }
  void say(const char* what, const c10::IValue& key, const std::string& why) {
    if (lines_ == nullptr) return;
    const std::string shown = key.isString() ? fmt::format("\"{}\"", key.toStringRef().substr(0, 60)) : "...";
    lines_->lines.push_back(fmt::format("{}: {}{}[{}]: {}", what, lines_->place, place_, shown, why));
  }
  void write(TensorFile& file, const std::string& what) {
    if (lines_ == nullptr) return;
    const std::string text = text_of_value(entries_);
    constexpr std::size_t kMost = 100'000'000;  // what a file can hold
    lines_->text += text.size();
    if (lines_->text > kMost) throw CheckpointError(ErrorCode::kUnsupported, "its options take over 100 MB as text");
    file.metadata["optimizer.python." + what] = text;
  }
  bool empty() const { return entries_.empty(); }

 private:
  PythonLines* lines_;
  std::string place_;
  Dict entries_ = make_dict();
};

// Reads the options; returns the keys of the parameters.
std::vector<std::string> read_group(TensorFile& file, const Dict& group, std::size_t index, PythonLines* lines) {
  const std::string prefix = fmt::format("optimizer.group.{}.", index);
  PythonNotes notes(lines, fmt::format("[\"param_groups\"][{}]", index));
  for (const auto& entry : group) {
    const bool named = entry.key().isString();
    if (named && entry.key().toStringRef() == "params") continue;
    if (named) read_option(file, prefix, entry.key().toStringRef(), entry.value());
    notes.add(entry.key(), entry.value(), named && file.metadata.contains(prefix + entry.key().toStringRef()));
  }
  notes.write(file, fmt::format("group.{}", index));
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

void read_param(TensorFile& file, const Dict& state, std::size_t param, PythonLines* lines) {
  const std::string prefix = fmt::format("optimizer.param.{}.", param);
  PythonNotes notes(lines, fmt::format("[\"state\"][{}]", param));
  for (const auto& entry : state) {
    const c10::IValue& value = entry.value();
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    const std::string name = entry.key().isString() ? entry.key().toStringRef() : "";
    if (name == "step") file.metadata[prefix + name] = step_text(value, prefix);
    if (name == "step" && is_tensor) {
      const torch::Tensor written = step_tensor(file.metadata[prefix + name]);
      if (written.scalar_type() != value.toTensor().scalar_type() || value.toTensor().dim() != 0)
        notes.say("changed", name, fmt::format("it becomes a tensor of {}", find_dtype(written.scalar_type())->name));
    } else if (is_tensor && !name.empty()) {
      file.tensors[prefix + name] = value.toTensor();
      if (file.metadata.at("optimizer.type") == "SGD") note_strides(file, prefix + name, {});
    } else {
      notes.add(entry.key(), value, false);
    }
  }
  if (state.empty() || !notes.empty()) notes.write(file, fmt::format("param.{}", param));
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

void add_python_optimizer(TensorFile& file, const c10::IValue& state, std::string_view kind, PythonLines* lines) {
  const bool is_told = !kind.empty();
  const Dict all = dict_at(state, "the optimizer's state");
  PythonNotes notes(lines, "");
  for (const auto& entry : all) {
    if (!entry.key().isString() ||
        (entry.key().toStringRef() != "state" && entry.key().toStringRef() != "param_groups"))
      notes.say("left out", entry.key(), "optimizers have \"state\" and \"param_groups\" alone");
  }
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
  bool renamed = false;
  for (const c10::IValue& value : groups->toListRef()) {
    const Dict group = dict_at(value, fmt::format("group {}", counts.size()));
    if (!is_told) {
      const std::string_view found = kind_with(group, counts.size());
      if (kind.empty()) kind = found;
    }
    require_kind(group, python_kind(kind), counts.size());
    const std::vector<std::string> keys = read_group(file, group, counts.size(), lines);
    for (const std::string& key : keys) {
      renamed = renamed || key != text_of(index_of.size());
      if (!index_of.emplace(key, index_of.size()).second) {
        throw mismatch(fmt::format("parameter {} is in two places of its groups", printable(key)));
      }
    }
    counts.push_back(keys.size());
  }
  if (renamed) notes.say("changed", "param_groups", "its parameters have numbers now, in the order of the groups");
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
    read_param(file, dict_at(entry.value(), "the state of a parameter"), found->second, lines);
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
