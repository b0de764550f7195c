#include "python_optimizers.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "base/printable.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {

using Options = c10::impl::GenericDict;

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

}  // namespace lockstep::checkpoint
