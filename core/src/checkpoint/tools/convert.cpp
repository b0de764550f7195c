#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "any_file.h"
#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/interchange/optimizer_dict.h"
#include "checkpoint/python/pickle_names.h"
#include "checkpoint/state/value_text.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

bool changes_tensors(const ConvertOptions& options) {
  return !options.dtype.empty() || !options.strip_prefix.empty() || !options.add_prefix.empty();
}

// The state dict with other dtypes and names.
StateDict changed(StateDict state, const ConvertOptions& options) {
  ValueBudget budget;
  for (const auto& entry : state) budget.add(*entry);
  if (!options.strip_prefix.empty()) {
    state = strip_prefix(state, options.strip_prefix);
    if (state.is_empty()) {
      throw CheckpointError(ErrorCode::kMismatch,
                            fmt::format("no name begins with \"{}\"", printable(options.strip_prefix)));
    }
  }
  if (!options.add_prefix.empty()) state = add_prefix(state, options.add_prefix);
  if (!options.dtype.empty()) state = to(state, find_dtype(options.dtype)->dtype);
  return state;
}

// Makes a checkpoint of the dict that a trainer in Python has saved.
class CheckpointMaker {
 public:
  explicit CheckpointMaker(std::string optimizer) : optimizer_(std::move(optimizer)) {}

  void add(const std::string& key, const c10::IValue& value) {
    if (key == "model" || key == "state_dict" || key == "model_state_dict") {
      take_place("the model", key);
      add_tensors("model.", value);
    } else if (key == "optimizer" || key == "optimizer_state_dict") {
      take_place("the optimizer", key);
      PythonLines said{fmt::format("[\"{}\"]", key)};
      add_python_optimizer(file_, value, optimizer_, &said);
      left_out_.insert(left_out_.end(), said.lines.begin(), said.lines.end());
    } else if (key == "generators" && holds(value, &c10::IValue::isTensor)) {
      add_tensors("generator.", value);
    } else if (key == "tensors" && holds(value, &c10::IValue::isTensor)) {
      add_tensors("tensors.", value);
    } else if (key == "values" && holds(value, nullptr)) {
      for (const auto& entry : value.toGenericDict()) {
        add_value(entry.key().toStringRef(), entry.value(), fmt::format("[\"{}\"]", key));
      }
    } else if (key == "step" && value.isInt() && value.toInt() >= 0) {
      file_.metadata[key] = text_of(value.toInt());
    } else if (key == "metric" && (value.isInt() || value.isDouble())) {
      file_.metadata[key] = text_of(value.toScalar().toDouble());
      if (value.isInt()) left_out_.push_back(fmt::format("changed: [\"{}\"]: an integer becomes a float", key));
    } else if (key == "scheduler") {
      leave_out(fmt::format("[\"{}\"]", key), "it does not say of which class of Lockstep it is");
    } else {
      add_value(key, value, "");
    }
  }
  void leave_out(const std::string& place, const std::string& why) {
    left_out_.push_back(fmt::format("left out: {}: {}", place, why));
  }

  void write(const fs::path& to) {
    if (const auto step = step_of_checkpoint(to.filename().native())) file_.metadata.emplace("step", text_of(*step));
    const auto model = file_.tensors.lower_bound("model.");
    if (model == file_.tensors.end() || !model->first.starts_with("model.")) {
      throw CheckpointError(ErrorCode::kMismatch, "expected a dict with the entry \"model\", a state dict");
    }
    ValueBudget budget;
    for (const auto& [name, tensor] : file_.tensors) budget.add(tensor);
    write_tensor_file(to, file_);
  }
  Lines left_out() const { return left_out_; }

 private:
  // Whether it is a dict from text to values of this kind.
  static bool holds(const c10::IValue& value, bool (c10::IValue::*is_kind)() const) {
    if (!value.isGenericDict()) return false;
    const auto dict = value.toGenericDict();
    return std::all_of(dict.begin(), dict.end(), [&](const auto& entry) {
      return entry.key().isString() && (is_kind == nullptr || (entry.value().*is_kind)());
    });
  }

  void take_place(const std::string& what, const std::string& key) {
    if (taken_.insert(what).second) return;
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("it has two entries for {}, the second is \"{}\": save one",
                                                            what, printable(key)));
  }

  void add_tensors(const std::string& prefix, const c10::IValue& value) {
    for (const auto& entry : to_state_dict(value)) file_.tensors[prefix + entry.key()] = *entry;
  }

  void add_value(const std::string& name, const c10::IValue& value, const std::string& place) {
    try {
      set_own_value(file_, name, value);
      take_place(fmt::format("the value \"{}\"", printable(name)), name);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      return leave_out(fmt::format("{}[\"{}\"]", place, name), error.what());
    }
    budget_.add(std::string_view(file_.metadata.at(std::string(kValuePrefix) + name)));
  }

  std::string optimizer_;
  TensorFile file_;
  ValueBudget budget_;
  std::set<std::string> taken_;
  Lines left_out_;
};

Lines write_checkpoint(const fs::path& to, const c10::IValue& value, const ConvertOptions& options) {
  CheckpointMaker maker(options.optimizer);
  ValueBudget budget;
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (entry.value().isString()) budget.add(std::string_view(entry.value().toStringRef()));
      if (entry.key().isString()) {
        maker.add(entry.key().toStringRef(), entry.value());
      } else {
        maker.leave_out("an entry of the dict", "its key is no text");
      }
    }
  }
  maker.write(to);
  return maker.left_out();
}

}  // namespace

std::string wrong_options(const fs::path& to, const ConvertOptions& options) {
  if (to.extension() == ".ckpt" && changes_tensors(options))
    return "--dtype and the prefixes are for state dicts, not for checkpoints";
  if (to.extension() != ".ckpt" && !options.optimizer.empty()) return "--optimizer is for checkpoints (.ckpt)";
  const DtypeNames* dtype = options.dtype.empty() ? nullptr : find_dtype(options.dtype);
  if (options.dtype.empty() || (dtype != nullptr && c10::isFloatingType(dtype->dtype))) return {};
  return fmt::format("--dtype: expected a type of floating point such as float32, float16 or bfloat16, found \"{}\"",
                     printable(options.dtype));
}

Lines convert(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  if (const std::string why = wrong_options(to, options); !why.empty())
    throw CheckpointError(ErrorCode::kInvalidArgument, why);
  const AnyFile file =
      read_any_file(from, options.entry, options.ignore_checksum ? Checksum::kIgnored : Checksum::kIfPresent);
  const bool tensors = to.extension() == ".safetensors";
  if (to.extension() == ".ckpt") {
    Lines lines = in_context(file.path.native(), [&] { return write_checkpoint(to, file.value, options); });
    lines.insert(lines.end(), file.changed.begin(), file.changed.end());
    return lines;
  }
  if (!tensors && !changes_tensors(options)) {
    write_torch_file(to, file.value);
    Lines lines = file.changed;
    if (file.untyped.empty()) return lines;
    lines.push_back(fmt::format("as text, because an older version of Lockstep has saved them without their types: {}",
                                fmt::join(file.untyped, ", ")));
    return lines;
  }
  const StateDict state = in_context(file.path.native(), [&] { return changed(to_state_dict(file.value), options); });
  write_state_dict(to, state);
  return {};
}

}  // namespace lockstep::checkpoint
