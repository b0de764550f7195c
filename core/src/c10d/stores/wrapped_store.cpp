// LibTorch's stores as comm::Store.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/c10d/store_adapter.h"

namespace lockstep {
namespace {

// The longest single wait: stores count in milliseconds and add that to the clock, which must not overflow.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24);

std::vector<uint8_t> vector_of(std::string_view bytes) {
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

 private:
  using Op = comm::StoreCall::Op;

  Result<comm::StoreAnswer> answer(comm::StoreCall call) override {
    if (call.waits()) LOCKSTEP_RETURN_IF_ERROR(wait_for(call));
    comm::StoreAnswer answer;
    LOCKSTEP_RETURN_IF_ERROR(attempt([&] { run(call, answer); }, call));
    return answer;
  }

  void run(const comm::StoreCall& call, comm::StoreAnswer& answer) const {
    const auto value = [&](std::size_t i) { return vector_of(call.values[i]); };
    switch (call.op) {
      case Op::kSet:
        for (std::size_t i = 0; i < call.keys.size(); ++i) store_->set(call.keys[i], value(i));
        break;
      case Op::kGet:
        for (const std::string& key : call.keys) answer.values.push_back(to_bytes(store_->get(key)));
        break;
      case Op::kAdd: answer.number = store_->add(call.keys[0], call.amount); break;
      case Op::kCompareSet:
        answer.values.push_back(to_bytes(store_->compareSet(call.keys[0], value(0), value(1))));
        break;
      case Op::kAppend: store_->append(call.keys[0], value(0)); break;
      case Op::kWait: break;
      case Op::kCheck: answer.number = store_->check(call.keys) ? 1 : 0; break;
      case Op::kDelete: answer.number = store_->deleteKey(call.keys[0]) ? 1 : 0; break;
      case Op::kNumKeys: answer.number = store_->getNumKeys(); break;
    }
  }

  Status wait_for(const comm::StoreCall& call) {
    for (;;) {
      Status status = attempt([&] { store_->wait(call.keys, time_left(call.deadline)); }, call);
      if (status.ok()) return status;
      if (call.deadline.expired()) return {ErrorCode::kTimeout, status.message()};
      // A store that is gone fails here. A store that waited less than it was asked to is asked again.
      LOCKSTEP_RETURN_IF_ERROR(check(call.keys).status());
    }
  }

  template <typename Call>
  static Status attempt(const Call& call, const comm::StoreCall& asked) {
    constexpr std::array kNames = {"set", "get", "add", "compare_set", "append", "wait", "check", "delete", "num_keys"};
    const char* what = kNames.at(static_cast<std::size_t>(asked.op) - 1);
    const std::string key = asked.keys.empty() ? "" : asked.keys[0] + (asked.keys.size() > 1 ? ", ..." : "");
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
