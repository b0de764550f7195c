#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "any_file.h"
#include "checkpoint/error_context.h"
#include "checkpoint/foreign_value.h"
#include "checkpoint/tensor_rules.h"
#include "tensor_values.h"
#include "checkpoint/tools/tools.h"

namespace lockstep::checkpoint {
namespace {

using Dict = c10::impl::GenericDict;

// Values in a type that has all arithmetic, and all values of `tensor`. Integers of 64 bits without sign keep their
// order only below 2^63; whether two of them are equal is still right.
torch::Tensor comparable(const torch::Tensor& tensor, bool as_real) {
  if (tensor.is_complex()) return tensor.to(torch::kComplexDouble);
  if (as_real || tensor.is_floating_point()) return tensor.to(torch::kDouble);
  return tensor.scalar_type() == torch::kUInt64 ? tensor.contiguous().view(torch::kLong) : tensor.to(torch::kLong);
}

const char* kind_text(const c10::IValue& value) {
  if (value.isTensor()) return "a tensor";
  if (value.isGenericDict()) return "a dict";
  if (value.isList()) return "a list";
  if (value.isTuple()) return "a tuple";
  if (value.isNone()) return "None";
  if (value.isBool()) return "a bool";
  if (value.isInt() || value.isDouble() || value.isUnsigned()) return "a number";
  return value.isString() ? "a text" : "another value";
}

std::string scalar_text(const c10::IValue& value) {
  constexpr std::size_t kShown = 60;
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isUnsigned()) return std::to_string(value.toUInt());
  if (value.isString()) return fmt::format("\"{}\"", value.toStringRef().substr(0, kShown));
  if (const std::string* what = foreign_text(value)) return *what + ", which is not read";
  return kind_text(value);
}

class Comparison {
 public:
  explicit Comparison(const DiffOptions& options) : options_(options) {}

  void compare(const c10::IValue& a, const c10::IValue& b, const std::string& place) {
    if (a.isGenericDict() && b.isGenericDict()) return dicts(a.toGenericDict(), b.toGenericDict(), place);
    if (a.isList() && b.isList()) return items(a.toListRef(), b.toListRef(), place);
    if (a.isTuple() && b.isTuple()) return items(a.toTupleRef().elements(), b.toTupleRef().elements(), place);
    if (a.isTensor() && b.isTensor()) return tensors(a.toTensor(), b.toTensor(), place);
    if (same_scalar(a, b)) {
      ++found_.same;
    } else if (std::string_view(kind_text(a)) == kind_text(b)) {
      differ(place, fmt::format("{} and {}", scalar_text(a), scalar_text(b)));
    } else {
      differ(place, fmt::format("{} and {}", kind_text(a), kind_text(b)));
    }
  }

  Differences take() { return std::move(found_); }

 private:
  void differ(const std::string& place, const std::string& what) {
    if (found_.lines.size() < kMostLines)
      found_.lines.push_back(fmt::format("{}: {}", place.empty() ? "all" : place, what));
  }

  static std::string key_text(const c10::IValue& key) {
    return key.isString() ? fmt::format("[\"{}\"]", shown_text(key.toStringRef()))
                          : fmt::format("[{}]", scalar_text(key));
  }

  void dicts(const Dict& a, const Dict& b, const std::string& place) {
    for (const auto& entry : a) {
      const std::string inner = place + key_text(entry.key());
      if (const auto other = b.find(entry.key()); other != b.end()) {
        compare(entry.value(), other->value(), inner);
      } else {
        differ(inner, "only in the first");
      }
    }
    for (const auto& entry : b) {
      if (a.find(entry.key()) == a.end()) differ(place + key_text(entry.key()), "only in the second");
    }
  }

  template <typename Items>
  void items(const Items& a, const Items& b, const std::string& place) {
    if (a.size() != b.size()) return differ(place, fmt::format("{} and {} items", a.size(), b.size()));
    for (std::size_t i = 0; i < a.size(); ++i) compare(a[i], b[i], fmt::format("{}[{}]", place, i));
  }

  bool alike(double a, double b) const {
    return a == b || (std::isnan(a) && std::isnan(b)) ||
           (std::isfinite(b) && std::abs(a - b) <= options_.atol + options_.rtol * std::abs(b));
  }

  bool same_scalar(const c10::IValue& a, const c10::IValue& b) {
    const bool exact = options_.rtol == 0 && options_.atol == 0;
    if (a.isUnsigned() && b.isUnsigned() && (exact || a.toUInt() == b.toUInt())) return a.toUInt() == b.toUInt();
    if (a.isInt() && b.isInt() && (exact || a.toInt() == b.toInt())) return a.toInt() == b.toInt();
    const auto is_number = [](const c10::IValue& value) {
      return value.isInt() || value.isDouble() || value.isUnsigned();
    };
    const auto number = [](const c10::IValue& value) {
      if (value.isDouble()) return value.toDouble();
      return value.isInt() ? static_cast<double>(value.toInt()) : static_cast<double>(value.toUInt());
    };
    if (is_number(a) && is_number(b)) return alike(number(a), number(b));
    if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
    if (a.isString() && b.isString()) {
      budget_.add(std::string_view(a.toStringRef()));
      return a.toStringRef() == b.toStringRef();
    }
    if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
    if (a.isDevice() && b.isDevice()) return a.toDevice() == b.toDevice();
    if (a.isComplexDouble() && b.isComplexDouble()) return a.toComplexDouble() == b.toComplexDouble();
    return false;
  }

  void tensors(const torch::Tensor& a, const torch::Tensor& b, const std::string& place) {
    for (const torch::Tensor& tensor : {a, b}) {
      if (const std::string reason = why_not_saved(tensor); !reason.empty()) return differ(place, "a tensor " + reason);
    }
    if (a.sizes() != b.sizes()) {
      return differ(place, fmt::format("shape [{}] and [{}]", fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", ")));
    }
    if (a.scalar_type() != b.scalar_type() && !options_.ignore_dtypes) {
      return differ(place, fmt::format("{} and {}", dtype_text(a), dtype_text(b)));
    }
    const bool near = options_.rtol > 0 || options_.atol > 0;
    const bool as_real = near || a.is_floating_point() || b.is_floating_point() || a.scalar_type() != b.scalar_type();
    const bool repeats = same_repeats(a, b);
    for (const torch::Tensor& tensor : {a, b}) budget_.add(repeats ? without_repeats(tensor) : tensor);
    const torch::Tensor first = comparable(repeats ? without_repeats(a) : a, as_real);
    const torch::Tensor second = comparable(repeats ? without_repeats(b) : b, as_real);
    torch::Tensor same = first.eq(second) | (first.ne(first) & second.ne(second));
    if (near) {
      same = same | (torch::isfinite(second) & (first - second).abs().le(second.abs() * options_.rtol + options_.atol));
    }
    if (same.all().item<bool>()) {
      ++found_.same;
      return;
    }
    differ(place, difference_of(first, second, ~same));
  }

  // Whether both repeat their values along the same dimensions.
  static bool same_repeats(const torch::Tensor& a, const torch::Tensor& b) {
    for (std::int64_t i = 0; i < a.dim(); ++i) {
      if ((a.stride(i) == 0) != (b.stride(i) == 0)) return false;
    }
    return true;
  }

  // How many elements differ, by how much at most, and where.
  static std::string difference_of(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& differs) {
    torch::Tensor gap = (a - b).abs().to(torch::kDouble);
    gap = torch::where(differs, torch::nan_to_num(gap, HUGE_VAL, HUGE_VAL, HUGE_VAL), torch::zeros_like(gap) - 1)
              .flatten();
    std::int64_t index = gap.argmax().item<std::int64_t>();
    const double most = gap[index].item<double>();
    const double of = b.flatten()[index].abs().to(torch::kDouble).item<double>();
    std::vector<std::int64_t> place;
    for (std::int64_t i = a.dim(); i-- > 0;) {
      place.insert(place.begin(), index % a.size(i));
      index /= a.size(i);
    }
    return fmt::format("{} of {} values differ, most at [{}]: by {:.6g}{}", differs.sum().item<std::int64_t>(),
                       a.numel(), fmt::join(place, ", "), most,
                       of > 0 && std::isfinite(most) ? fmt::format(" ({:.3g} relative)", most / of) : "");
  }

  const DiffOptions& options_;
  ValueBudget budget_;
  Differences found_;
};

}  // namespace

Differences diff(const std::filesystem::path& first, const std::filesystem::path& second, const DiffOptions& options) {
  const AnyFile a = read_any_file(first, options.first_entry);
  const AnyFile b = read_any_file(second, options.second_entry);
  Comparison comparison(options);
  in_context(fmt::format("{} and {}", a.path.native(), b.path.native()),
             [&] { comparison.compare(a.value, b.value, ""); });
  return comparison.take();
}

}  // namespace lockstep::checkpoint
