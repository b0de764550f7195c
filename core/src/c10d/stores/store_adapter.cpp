#include "lockstep/c10d/store_adapter.h"

#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

std::string_view view(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> to_vector(const comm::Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

void check(const Status& status) {
  if (!status.ok()) throw StoreError(status.code(), status.message());
}

template <typename T>
T value_of(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// c10d's kNoTimeout is zero and means "no timeout".
Deadline deadline_after(std::chrono::milliseconds timeout) {
  return timeout <= std::chrono::milliseconds::zero() ? Deadline::never() : Deadline::after(timeout);
}

}  // namespace

StoreAdapter::StoreAdapter(std::shared_ptr<comm::Store> store, std::chrono::milliseconds timeout)
    : c10d::Store(timeout), store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> StoreAdapter::clone() {
  return c10::make_intrusive<StoreAdapter>(store_, timeout_);
}

void StoreAdapter::set(const std::string& key, const std::vector<uint8_t>& value) {
  lockstep::check(store_->set(key, view(value)));
}

std::vector<uint8_t> StoreAdapter::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& desired) {
  return to_vector(value_of(store_->compare_set(key, view(expected), view(desired))));
}

std::vector<uint8_t> StoreAdapter::get(const std::string& key) {
  return to_vector(value_of(store_->get(key, deadline_after(timeout_))));
}

int64_t StoreAdapter::add(const std::string& key, int64_t value) {
  return value_of(store_->add(key, value));
}

bool StoreAdapter::deleteKey(const std::string& key) {
  return value_of(store_->delete_key(key));
}

bool StoreAdapter::check(const std::vector<std::string>& keys) {
  return value_of(store_->check(keys));
}

int64_t StoreAdapter::getNumKeys() {
  return value_of(store_->num_keys());
}

void StoreAdapter::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void StoreAdapter::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  lockstep::check(store_->wait(keys, deadline_after(timeout)));
}

void StoreAdapter::append(const std::string& key, const std::vector<uint8_t>& value) {
  lockstep::check(store_->append(key, view(value)));
}

std::vector<std::vector<uint8_t>> StoreAdapter::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  for (const comm::Bytes& bytes : value_of(store_->multi_get(keys, deadline_after(timeout_)))) {
    values.push_back(to_vector(bytes));
  }
  return values;
}

void StoreAdapter::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  std::vector<comm::Bytes> bytes;
  bytes.reserve(values.size());
  for (const auto& value : values) bytes.emplace_back(view(value));
  lockstep::check(store_->multi_set(keys, bytes));
}

}  // namespace lockstep
