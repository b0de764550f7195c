#include "gradient_evidence.h"

#include <algorithm>
#include <atomic>

namespace lockstep::nn_detail {
namespace {

std::atomic<int> wanted{0};

// Infinities and NaN are the values whose exponent has all bits set.
template <typename Word>
bool have_finite_exponents(const torch::Tensor& values, std::int64_t words, Word exponent) {
  const auto* const data = static_cast<const Word*>(values.const_data_ptr());
  const std::int64_t step = words <= kMostLooked ? 1 : (words + kMostLooked - 1) / kMostLooked;
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

void note_evidence(const UsersPtr& users, std::uint64_t number, const torch::Tensor& values) {
  if (users == nullptr) return;
  users->last_pass.store(number, std::memory_order_relaxed);
  std::uint64_t none = 0;
  if (!looks_finite(values)) users->bad_pass.compare_exchange_strong(none, number, std::memory_order_relaxed);
}

Evidence take_evidence(const std::vector<NamedParameter>& parameters) {
  Evidence first;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const UsersPtr users = users_of(parameters[i].tensor);
    const std::uint64_t pass = users == nullptr ? 0 : users->bad_pass.exchange(0, std::memory_order_relaxed);
    if (pass == 0 || (first.pass != 0 && first.pass <= pass)) continue;
    const std::uint64_t last = users->last_pass.load(std::memory_order_relaxed);
    first = {pass, std::max(last, pass) - pass, i};
  }
  return first;
}

}  // namespace lockstep::nn_detail
