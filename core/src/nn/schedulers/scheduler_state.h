// The state dict of a scheduler while it is written or read: a dict of Python's with text as keys.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::optim {

class SchedulerState {
 public:
  explicit SchedulerState(std::string owner);
  // A ValueError unless `value` is a dict. `owner` begins the messages: "StepLR".
  SchedulerState(std::string owner, const c10::IValue& value);

  void put(const char* key, c10::IValue value) { dict_.insert(key, std::move(value)); }
  void put_list(const char* key, const std::vector<double>& values);
  void put_list(const char* key, const std::vector<std::int64_t>& values);
  void put_list(const char* key, const std::vector<c10::IValue>& values);
  const c10::impl::GenericDict& dict() const { return dict_; }

  // These throw a ValueError that names the key and what was found instead. Numbers are finite, and whole numbers at
  // most 2^53. A tensor with one element counts as a number, as rates may be tensors in Python.
  double number(const char* key) const;
  std::int64_t integer(const char* key) const;
  bool flag(const char* key) const;
  std::string text(const char* key) const;
  std::vector<double> numbers(const char* key) const;
  std::vector<std::int64_t> integers(const char* key) const;
  std::vector<c10::IValue> list(const char* key) const;
  c10::IValue value(const char* key) const;
  // For a class whose keys others have too: a ValueError if the state has one of `keys`, which are theirs alone.
  void refuse_keys(std::initializer_list<const char*> keys) const;

  double number(const char* key, const c10::IValue& value) const;
  std::int64_t integer(const char* key, const c10::IValue& value) const;

 private:
  [[noreturn]] void refuse(const char* key, std::string_view expected, const c10::IValue& found) const;

  std::string owner_;
  c10::impl::GenericDict dict_;
};

}  // namespace lockstep::optim
