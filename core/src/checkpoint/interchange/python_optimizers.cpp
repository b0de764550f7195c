#include "python_optimizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "base/printable.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

using Options = c10::impl::GenericDict;

// Whether the options are those of this kind and no more: another optimizer's formula may have further ones. Schedulers
// add options, and texts are names.
bool has_options_of(const Options& group, const PythonKind& kind) {
  static const std::set<std::string_view> kOthers = {"params", "param_names",   "initial_lr",   "max_lr",
                                                     "min_lr", "base_momentum", "max_momentum", "swa_lr"};
  const auto is_in = [](const auto& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  const bool has_own = std::all_of(kind.own.begin(), kind.own.end(),
                                   [&](std::string_view option) { return entry_under(group, option).has_value(); });
  return has_own && std::all_of(group.begin(), group.end(), [&](const auto& entry) {
           if (!entry.key().isString() || entry.value().isNone() || entry.value().isString()) return true;
           const std::string& name = entry.key().toStringRef();
           return kOthers.contains(name) || is_in(kind.own, name) || is_in(kind.other, name) || is_in(kind.off, name) ||
                  is_in(kind.automatic, name);
         });
}

// Of PyTorch's other optimizers, by an option of each.
std::string_view other_optimizer_with(const Options& group) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kNames = {{{"lambd", "ASGD"},
                                                                                    {"momentum_decay", "NAdam"},
                                                                                    {"rho", "Adadelta"},
                                                                                    {"etas", "Rprop"},
                                                                                    {"max_iter", "LBFGS"},
                                                                                    {"beta2_decay", "Adafactor"},
                                                                                    {"ns_coefficients", "Muon"}}};
  for (const auto& [option, name] : kNames) {
    if (entry_under(group, option)) return name;
  }
  return entry_under(group, "decoupled_weight_decay") && !entry_under(group, "amsgrad") ? "RAdam" : "an unknown one";
}

}  // namespace

const PythonKind& python_kind(std::string_view name) {
  static const std::array kKinds = {
      PythonKind{"SGD",
                 {"dampening", "nesterov"},
                 {"lr", "momentum", "weight_decay"},
                 {"maximize", "differentiable"},
                 {"foreach", "fused"}},
      PythonKind{"Adam",
                 {"betas", "amsgrad"},
                 {"lr", "eps", "weight_decay", "decoupled_weight_decay"},
                 {"maximize", "capturable", "differentiable"},
                 {"foreach", "fused"}},
      PythonKind{"AdamW",
                 {"betas", "amsgrad"},
                 {"lr", "eps", "weight_decay", "decoupled_weight_decay"},
                 {"maximize", "capturable", "differentiable"},
                 {"foreach", "fused"}},
      PythonKind{"RMSprop",
                 {"alpha", "centered"},
                 {"lr", "eps", "momentum", "weight_decay"},
                 {"maximize", "capturable", "differentiable"},
                 {"foreach"}},
      PythonKind{"Adagrad",
                 {"lr_decay"},
                 {"lr", "eps", "weight_decay", "initial_accumulator_value"},
                 {"maximize", "differentiable"},
                 {"foreach", "fused"}},
  };
  for (const PythonKind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  throw CheckpointError(ErrorCode::kUnsupported,
                        fmt::format("its optimizer is of the unknown kind {:.40}", printable(name)));
}

std::string_view kind_with(const Options& group, std::size_t index) {
  for (const std::string_view kind : {"SGD", "RMSprop", "Adagrad"}) {
    if (has_options_of(group, python_kind(kind))) return kind;
  }
  if (!has_options_of(group, python_kind("Adam"))) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("its optimizer seems to be {}: expected SGD, Adam, AdamW, RMSprop or Adagrad. "
                                      "Group {} has: {}. If it is one of them "
                                      "with options of your own, name it: lockstep checkpoint convert --optimizer Adam",
                                      other_optimizer_with(group), index, keys_of(group)));
  }
  const auto decoupled = entry_under(group, "decoupled_weight_decay");
  if (decoupled && decoupled->isBool()) return decoupled->toBool() ? "AdamW" : "Adam";
  throw CheckpointError(ErrorCode::kUnsupported,
                        "its options do not tell which optimizer it is: expected SGD, RMSprop, Adagrad, or Adam or "
                        "AdamW of PyTorch 2.7 or newer. Name it: lockstep checkpoint convert --optimizer Adam");
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

}  // namespace lockstep::checkpoint
