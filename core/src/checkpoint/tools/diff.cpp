#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "any_file.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/tools/tools.h"

namespace lockstep::checkpoint {
namespace {

using Dict = c10::impl::GenericDict;

// Doubles round integers of 64 bits.
torch::Tensor rounded(const torch::Tensor& tensor) {
  return tensor.to(tensor.is_complex() ? torch::kComplexDouble : torch::kDouble);
}

// The upper and the lower half of integers of 64 bits, of which doubles round neither; other values, and 0.
std::pair<torch::Tensor, torch::Tensor> halves(const torch::Tensor& tensor) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 32;
  const bool with_sign = tensor.scalar_type() == torch::kInt64;
  if (!with_sign && tensor.scalar_type() != torch::kUInt64) return {rounded(tensor), torch::zeros({}, torch::kDouble)};
  const torch::Tensor bits = with_sign ? tensor : tensor.view(torch::kInt64);
  const torch::Tensor shifted = torch::bitwise_right_shift(bits, 32);
  const torch::Tensor upper = with_sign ? shifted : shifted & (kHalf - 1);
  return {upper.to(torch::kDouble) * static_cast<double>(kHalf), (bits & (kHalf - 1)).to(torch::kDouble)};
}

// How far values are apart; of values that are the same when they are rounded, exactly.
torch::Tensor gap_of(const torch::Tensor& a, const torch::Tensor& b) {
  const auto [upper_a, lower_a] = halves(a);
  const auto [upper_b, lower_b] = halves(b);
  return ((upper_a - upper_b) + (lower_a - lower_b)).abs();
}

const char* kind_text(const c10::IValue& value) {
  if (value.isTensor()) return "a tensor";
  if (value.isGenericDict()) return "a dict";
  if (value.isList()) return "a list";
  if (value.isTuple()) return "a tuple";
  if (value.isNone()) return "None";
  if (value.isBool()) return "a bool";
  if (value.isInt() || value.isUnsigned()) return "an int";
  if (value.isDouble()) return "a float";
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
    const bool alike_in_kind = std::string_view(kind_text(a)) == kind_text(b);
    const bool both_numbers = is_number(a) && is_number(b);
    if ((alike_in_kind || (both_numbers && options_.ignore_dtypes)) && same_scalar(a, b)) {
      ++found_.same;
    } else if (alike_in_kind) {
      differ(place, fmt::format("{} and {}", scalar_text(a), scalar_text(b)));
    } else if (both_numbers) {
      differ(place, fmt::format("{} and {}: {} and {}", kind_text(a), kind_text(b), scalar_text(a), scalar_text(b)));
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

  // In this type every integer of 64 bits is exact.
  using Exact = long double;
  static_assert(std::numeric_limits<Exact>::digits >= 64);

  bool alike(Exact a, Exact b) const {
    return a == b || (std::isnan(a) && std::isnan(b)) ||
           (std::isfinite(b) && std::abs(a - b) <= options_.atol + options_.rtol * std::abs(b));
  }

  static bool is_number(const c10::IValue& value) { return value.isInt() || value.isUnsigned() || value.isDouble(); }
  static Exact number(const c10::IValue& value) {
    if (value.isDouble()) return value.toDouble();
    return value.isInt() ? static_cast<Exact>(value.toInt()) : static_cast<Exact>(value.toUInt());
  }

  bool same_scalar(const c10::IValue& a, const c10::IValue& b) {
    if (is_number(a) && is_number(b)) return alike(number(a), number(b));
    if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
    if (a.isString() && b.isString()) {
      budget_.add(std::string_view(a.toStringRef()));
      return a.toStringRef() == b.toStringRef();
    }
    if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
    if (a.isDevice() && b.isDevice()) return a.toDevice() == b.toDevice();
    if (a.isComplexDouble() && b.isComplexDouble()) {
      const c10::complex<double> first = a.toComplexDouble();
      const c10::complex<double> second = b.toComplexDouble();
      return alike(first.real(), second.real()) && alike(first.imag(), second.imag());
    }
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
    const bool repeats = same_repeats(a, b);
    for (const torch::Tensor& tensor : {a, b}) budget_.add(repeats ? without_repeats(tensor) : tensor);
    const torch::Tensor first = repeats ? without_repeats(a) : a;
    const torch::Tensor second = repeats ? without_repeats(b) : b;
    const torch::Tensor x = rounded(first);
    const torch::Tensor y = rounded(second);
    const torch::Tensor gap = gap_of(first, second);
    torch::Tensor same = (x.eq(y) & ~gap.gt(0)) | (x.ne(x) & y.ne(y));
    if (options_.rtol > 0 || options_.atol > 0) {
      same = same | (torch::isfinite(y) & gap.le(y.abs() * options_.rtol + options_.atol));
    }
    if (same.all().item<bool>()) {
      ++found_.same;
      return;
    }
    differ(place, difference_of(gap, y, ~same));
  }

  // Whether both repeat their values along the same dimensions.
  static bool same_repeats(const torch::Tensor& a, const torch::Tensor& b) {
    for (std::int64_t i = 0; i < a.dim(); ++i) {
      if ((a.stride(i) == 0) != (b.stride(i) == 0)) return false;
    }
    return true;
  }

  // How many elements differ, by how much at most, and where.
  static std::string difference_of(torch::Tensor gap, const torch::Tensor& b, const torch::Tensor& differs) {
    const torch::Tensor of_values = torch::nan_to_num(gap, HUGE_VAL, HUGE_VAL, HUGE_VAL);
    gap = torch::where(differs, of_values, torch::zeros_like(gap) - 1).flatten();
    std::int64_t index = gap.argmax().item<std::int64_t>();
    const double most = gap[index].item<double>();
    const double of = b.flatten()[index].abs().to(torch::kDouble).item<double>();
    std::vector<std::int64_t> place;
    for (std::int64_t i = b.dim(); i-- > 0;) {
      place.insert(place.begin(), index % b.size(i));
      index /= b.size(i);
    }
    return fmt::format("{} of {} values differ, most at [{}]: by {:.6g}{}", differs.sum().item<std::int64_t>(),
                       b.numel(), fmt::join(place, ", "), most,
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
