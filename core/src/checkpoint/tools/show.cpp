#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "any_file.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/tools/tools.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownItems = 16;  // of a list of numbers
constexpr std::size_t kShownText = 200;  // bytes

std::string bytes_text(double bytes) {
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000) return fmt::format("{:.4g} {}", bytes, unit);
    bytes /= 1000;
  }
  return fmt::format("{:.4g} TB", bytes);
}

bool can_be_counted(const torch::Tensor& tensor) {
  return tensor.defined() && why_not_saved(tensor).empty() && tensor.numel() > 0 && !tensor.is_complex();
}

class Shower {
 public:
  void add(const std::string& name, const c10::IValue& value, int depth) {
    if (lines_.size() >= kMostLines) return;
    const std::string begin = std::string(static_cast<std::size_t>(2 * depth), ' ') + (name.empty() ? "" : name + ": ");
    if (value.isGenericDict()) {
      const c10::impl::GenericDict dict = value.toGenericDict();
      lines_.push_back(fmt::format("{}dict of {}", begin, dict.size()));
      for (const auto& entry : dict) add(key_text(entry.key()), entry.value(), depth + 1);
    } else if (value.isList()) {
      add_items(begin, "list", value.toListRef(), depth);
    } else if (value.isTuple()) {
      add_items(begin, "tuple", value.toTupleRef().elements(), depth);
    } else {
      lines_.push_back(begin + leaf_text(value));
    }
  }

  Lines take(const AnyFile& file) {
    lines_.insert(lines_.begin(), fmt::format("{}: {}; {} tensors, {} elements, {}", file.path.native(), file.format,
                                              tensors_, elements_, bytes_text(bytes_)));
    return std::move(lines_);
  }

 private:
  static std::string key_text(const c10::IValue& key) {
    if (key.isString()) return shown_text(key.toStringRef());
    if (key.isInt()) return std::to_string(key.toInt());
    if (key.isBool()) return key.toBool() ? "True" : "False";
    return fmt::format("{}", key.toDouble());
  }

  static bool is_small(const c10::IValue& value) {
    return value.isNone() || value.isBool() || value.isInt() || value.isDouble() ||
           (value.isString() && value.toStringRef().size() < kShownText / kShownItems);
  }

  template <typename Items>
  void add_items(const std::string& begin, const char* what, const Items& items, int depth) {
    const bool small = std::all_of(items.begin(), items.end(), is_small);
    if (!small || items.empty()) {
      lines_.push_back(fmt::format("{}{} of {}", begin, what, items.size()));
      std::size_t index = 0;
      for (const c10::IValue& item : items) add(std::to_string(index++), item, depth + 1);
      return;
    }
    std::vector<std::string> shown;
    for (const c10::IValue& item : items) {
      if (shown.size() < kShownItems) shown.push_back(leaf_text(item));
    }
    lines_.push_back(fmt::format("{}{} of {}: {}{}", begin, what, items.size(), fmt::join(shown, ", "),
                                 items.size() > kShownItems ? ", ..." : ""));
  }

  std::string leaf_text(const c10::IValue& value) {
    if (value.isTensor()) return tensor_text(value.toTensor());
    if (value.isNone()) return "None";
    if (value.isBool()) return value.toBool() ? "True" : "False";
    if (value.isInt()) return std::to_string(value.toInt());
    if (value.isDouble()) return fmt::format("{}", value.toDouble());
    if (value.isDevice()) return "device " + value.toDevice().str();
    if (value.isComplexDouble()) {
      return fmt::format("{} + {}j", value.toComplexDouble().real(), value.toComplexDouble().imag());
    }
    if (value.isUnsigned()) return std::to_string(value.toUInt());
    if (const std::string* what = foreign_text(value)) return *what + ", which is not read";
    const std::string& text = value.toStringRef();
    return fmt::format("\"{}\"{}", text.substr(0, kShownText), text.size() > kShownText ? "..." : "");
  }

  std::string tensor_text(const torch::Tensor& tensor) {
    if (!tensor.defined()) return "None";
    ++tensors_;
    elements_ += tensor.numel();
    bytes_ += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
    std::string text = fmt::format("{} [{}]", dtype_text(tensor), fmt::join(tensor.sizes(), ", "));
    if (tensor.dim() == 0 && can_be_counted(tensor)) {
      return text + fmt::format(" = {}", tensor.to(torch::kDouble).item<double>());
    }
    return text;
  }

  Lines lines_;
  std::int64_t tensors_ = 0;
  std::int64_t elements_ = 0;
  double bytes_ = 0;
};

}  // namespace

Lines show(const fs::path& path, const ShowOptions& options) {
  const AnyFile file =
      read_any_file(path, options.entry, options.ignore_checksum ? Checksum::kIgnored : Checksum::kIfPresent);
  Shower shower;
  in_context(file.path.native(), [&] { shower.add("", file.value, 0); });
  return shower.take(file);
}

}  // namespace lockstep::checkpoint
