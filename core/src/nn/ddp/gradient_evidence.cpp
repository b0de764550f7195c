#include "gradient_evidence.h"

#include <algorithm>
#include <atomic>

namespace lockstep::nn_detail {
namespace {

std::atomic<int> wanted{0};
std::atomic<std::uint64_t> present{1};  // the present moment
std::atomic<std::uint64_t> oldest{0};   // evidence of earlier moments is of no use

// A moment and the number of a pass in one word, which grows with both; 0: no evidence.
constexpr int kPassBits = 32;
constexpr std::uint64_t kPassMask = (std::uint64_t{1} << kPassBits) - 1;

// Infinities and NaN are the values whose exponent has all bits set.
template <typename Word>
bool have_finite_exponents(const torch::Tensor& values, std::int64_t words, Word exponent) {
  const auto* const data = static_cast<const Word*>(values.const_data_ptr());
  // An odd step meets every column of a matrix whose rows have a power of two of values.
  const std::int64_t step = ((std::max<std::int64_t>(words, 1) - 1) / kLooked) | 1;
  bool is_bad = false;
  for (std::int64_t i = 0; i < words; i += step) is_bad |= (data[i] & exponent) == exponent;
  return !is_bad;
}

}  // namespace

std::shared_ptr<const void> want_evidence() {
  wanted.fetch_add(1, std::memory_order_relaxed);
  return {&wanted, [](const void*) { wanted.fetch_sub(1, std::memory_order_relaxed); }};
}

bool is_evidence_wanted() {
  return wanted.load(std::memory_order_relaxed) > 0;
}

bool looks_finite(const torch::Tensor& values) {
  const std::int64_t words = values.numel() * (values.is_complex() ? 2 : 1);
  switch (c10::toRealValueType(values.scalar_type())) {
    case torch::kFloat: return have_finite_exponents<std::uint32_t>(values, words, 0x7f800000);
    case torch::kDouble: return have_finite_exponents<std::uint64_t>(values, words, 0x7ff0000000000000);
    case torch::kHalf: return have_finite_exponents<std::uint16_t>(values, words, 0x7c00);
    case torch::kBFloat16: return have_finite_exponents<std::uint16_t>(values, words, 0x7f80);
    default: return true;
  }
}

std::uint64_t next_moment() {
  return present.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::uint64_t forget_evidence_before(std::uint64_t moment) {
  oldest.store(moment, std::memory_order_relaxed);
  return moment;
}

void note_evidence(const UsersPtr& users, std::uint64_t number, const torch::Tensor& values) {
  if (users == nullptr || looks_finite(values)) return;
  const std::uint64_t first = users->bad_pass.load(std::memory_order_relaxed);
  if (first != 0 && (first >> kPassBits) >= oldest.load(std::memory_order_relaxed)) return;
  const std::uint64_t moment = present.load(std::memory_order_relaxed);
  users->bad_pass.store((moment << kPassBits) | (number & kPassMask), std::memory_order_relaxed);
}

Evidence find_evidence(const std::vector<NamedParameter>& parameters, std::uint64_t since) {
  std::uint64_t first = 0;
  Evidence found;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const UsersPtr users = users_of(parameters[i].tensor);
    const std::uint64_t pass = users == nullptr ? 0 : users->bad_pass.load(std::memory_order_relaxed);
    if (pass == 0 || (pass >> kPassBits) < since || (first != 0 && first <= pass)) continue;
    first = pass;
    found = {pass >> kPassBits, pass & kPassMask, i};
  }
  return found;
}

std::vector<std::size_t> first_ranks(const std::vector<std::vector<double>>& rows) {
  std::vector<std::size_t> first;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const std::vector<double>& row = rows[rank];
    const bool is_later = std::any_of(rows.begin(), rows.end(), [&](const std::vector<double>& other) {
      return other[0] > row[0] || (other[0] == row[0] && other[1] == row[1] && other[2] < row[2]);
    });
    if (row[0] >= 0 && !is_later) first.push_back(rank);
  }
  return first;
}

}  // namespace lockstep::nn_detail
