// LibTorch's stores as comm::Store.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/c10d/store_adapter.h"

namespace lockstep {
namespace {

// The longest single wait: stores count in milliseconds and add that to the clock, which must not overflow.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24);

std::vector<uint8_t> to_vector(std::string_view bytes) {
  return {bytes.begin(), bytes.end()};
}

comm::Bytes to_bytes(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// At least 1 ms, because LibTorch's stores take zero as "no timeout".
std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
  return std::clamp(left, std::chrono::milliseconds(1), kLongestWait);
}

class WrappedStore final : public comm::Store {
 public:
  explicit WrappedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(std::string_view key, std::string_view value) override {
    return attempt([&] { store_->set(std::string(key), to_vector(value)); }, "set", key);
  }

  Result<comm::Bytes> get(std::string_view key, Deadline deadline) override {
    const std::vector<std::string> keys{std::string(key)};
    comm::Bytes value;
    LOCKSTEP_RETURN_IF_ERROR(wait(keys, deadline));
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { value = to_bytes(store_->get(keys.front())); }, "get", key));
    return value;
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override {
    std::int64_t value = 0;
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { value = store_->add(std::string(key), amount); }, "add", key));
    return value;
  }

  Result<comm::Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    comm::Bytes value;
    const auto call = [&] {
      value = to_bytes(store_->compareSet(std::string(key), to_vector(expected), to_vector(desired)));
    };
    LOCKSTEP_RETURN_IF_ERROR(attempt(call, "compare_set", key));
    return value;
  }

  Status append(std::string_view key, std::string_view value) override {
    return attempt([&] { store_->append(std::string(key), to_vector(value)); }, "append", key);
  }

  Status wait(std::span<const std::string> keys, Deadline deadline) override {
    const std::vector<std::string> list(keys.begin(), keys.end());
    for (;;) {
      Status status = attempt([&] { store_->wait(list, time_left(deadline)); }, "wait", name_of(keys));
      if (status.ok()) return status;
      if (deadline.expired()) return {ErrorCode::kTimeout, status.message()};
      // A store that is gone fails here. A store that waited less than it was asked to is asked again.
      LOCKSTEP_RETURN_IF_ERROR(check(keys).status());
    }
  }

  Result<bool> check(std::span<const std::string> keys) override {
    bool there = false;
    const std::vector<std::string> list(keys.begin(), keys.end());
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { there = store_->check(list); }, "check", name_of(keys)));
    return there;
  }

  Result<bool> delete_key(std::string_view key) override {
    bool was_there = false;
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { was_there = store_->deleteKey(std::string(key)); }, "delete_key", key));
    return was_there;
  }

  Result<std::int64_t> num_keys() override {
    std::int64_t count = 0;
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { count = store_->getNumKeys(); }, "num_keys", ""));
    return count;
  }

 private:
  static std::string name_of(std::span<const std::string> keys) {
    return keys.empty() ? std::string() : fmt::format("{}{}", keys.front(), keys.size() > 1 ? ", ..." : "");
  }

  template <typename Call>
  static Status attempt(const Call& call, const char* what, std::string_view key) {
    try {
      call();
      return {};
    } catch (const c10::Error& error) {
      return {ErrorCode::kUnavailable, fmt::format("store, {} '{}': {}", what, key, error.what_without_backtrace())};
    } catch (const std::exception& error) {
      return {ErrorCode::kUnavailable, fmt::format("store, {} '{}': {}", what, key, error.what())};
    }
  }

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::shared_ptr<comm::Store> wrap_store(c10::intrusive_ptr<c10d::Store> store) {
  if (const auto* adapter = dynamic_cast<const StoreAdapter*>(store.get())) return adapter->underlying();
  return std::make_shared<WrappedStore>(std::move(store));
}

}  // namespace lockstep
