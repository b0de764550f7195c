#include "scheduler_state.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <optional>

namespace lockstep::optim {
namespace {

c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

template <typename T>
c10::IValue make_list(const std::vector<T>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const T& value : values) list.push_back(value);
  return list;
}

std::optional<double> number_in(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() == 1 &&
      !value.toTensor().is_complex()) {
    return value.toTensor().item<double>();
  }
  return std::nullopt;
}

}  // namespace

SchedulerState::SchedulerState(std::string owner) : owner_(std::move(owner)), dict_(make_dict()) {}

SchedulerState::SchedulerState(std::string owner, const c10::IValue& value) : SchedulerState(std::move(owner)) {
  TORCH_CHECK_VALUE(value.isGenericDict(), owner_, ": its state is no dict, but a ", value.tagKind());
  dict_ = value.toGenericDict();
}

void SchedulerState::put_list(const char* key, const std::vector<double>& values) {
  put(key, make_list(values));
}
void SchedulerState::put_list(const char* key, const std::vector<std::int64_t>& values) {
  put(key, make_list(values));
}
void SchedulerState::put_list(const char* key, const std::vector<c10::IValue>& values) {
  put(key, make_list(values));
}

void SchedulerState::refuse(const char* key, std::string_view expected, const c10::IValue& found) const {
  const std::optional<double> number = number_in(found);
  C10_THROW_ERROR(ValueError, c10::str(owner_, ": its state has \"", key, "\", expected ", expected, ", found ",
                                       number ? c10::str(*number) : c10::str("a ", found.tagKind())));
}

c10::IValue SchedulerState::value(const char* key) const {
  const auto found = dict_.find(key);
  TORCH_CHECK_VALUE(found != dict_.end(), owner_, ": its state has no \"", key,
                    "\"; expected the state dict of a scheduler of this class");
  return found->value();
}

void SchedulerState::refuse_keys(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    TORCH_CHECK_VALUE(!dict_.contains(key), owner_, ": its state has \"", key, "\": it is that of another class");
  }
}

double SchedulerState::number(const char* key, const c10::IValue& value) const {
  const std::optional<double> number = number_in(value);
  if (!number || !std::isfinite(*number)) refuse(key, "a finite number", value);
  return *number;
}

std::int64_t SchedulerState::integer(const char* key, const c10::IValue& value) const {
  constexpr double kMost = 9007199254740992.0;  // 2^53
  const std::optional<double> number = number_in(value);
  if (!number || !(std::abs(*number) <= kMost) || *number != std::floor(*number)) refuse(key, "a whole number", value);
  return static_cast<std::int64_t>(*number);
}

double SchedulerState::number(const char* key) const {
  return number(key, value(key));
}
std::int64_t SchedulerState::integer(const char* key) const {
  return integer(key, value(key));
}

bool SchedulerState::flag(const char* key) const {
  const c10::IValue found = value(key);
  if (!found.isBool()) refuse(key, "True or False", found);
  return found.toBool();
}

std::string SchedulerState::text(const char* key) const {
  const c10::IValue found = value(key);
  if (!found.isString()) refuse(key, "text", found);
  return found.toStringRef();
}

std::vector<c10::IValue> SchedulerState::list(const char* key) const {
  const c10::IValue found = value(key);
  if (found.isTuple()) return found.toTupleRef().elements().vec();
  if (!found.isList()) refuse(key, "a list", found);
  return found.toListRef().vec();
}

std::vector<double> SchedulerState::numbers(const char* key) const {
  std::vector<double> result;
  for (const c10::IValue& item : list(key)) result.push_back(number(key, item));
  return result;
}

std::vector<std::int64_t> SchedulerState::integers(const char* key) const {
  std::vector<std::int64_t> result;
  for (const c10::IValue& item : list(key)) result.push_back(integer(key, item));
  return result;
}

}  // namespace lockstep::optim
