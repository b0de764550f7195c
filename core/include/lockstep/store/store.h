// Store: the small key-value service through which ranks find one another. Usable on its own.
//
// Semantics are those of torch.distributed's stores. Keys are text, values are bytes. All methods may be called from
// several threads. Methods that take a Deadline block until they have a result or the deadline passes (kTimeout, which
// names the missing keys); the others block only for a round trip.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

using Bytes = std::string;  // values are arbitrary bytes

// What a method of Store asks of its implementation.
struct StoreCall {
  enum class Op : std::uint8_t { kSet = 1, kGet, kAdd, kCompareSet, kAppend, kWait, kCheck, kDelete, kNumKeys };

  Op op = Op::kNumKeys;
  std::vector<std::string> keys = {};
  std::vector<Bytes> values =
      {};                   // kSet: one for each key; kAppend: one; kCompareSet: the expected and the desired one
  std::int64_t amount = 0;  // kAdd
  // kGet and kWait: until when to wait for the keys. Other calls: when to give up; never: the store's own limit.
  Deadline deadline = Deadline::never();
  // kGet and kWait: once this key exists, the wait ends with kAborted. Empty: none. Stores other than TcpStore ignore
  // it.
  std::string unless = {};

  bool waits() const { return op == Op::kGet || op == Op::kWait; }
};

struct StoreAnswer {
  std::int64_t number = 0;         // kAdd: the sum; kCheck and kDelete: 0 or 1; kNumKeys
  std::vector<Bytes> values = {};  // kGet: one for each key; kCompareSet: one
};

class Store {
 public:
  virtual ~Store() = default;

  // Sets the key's value. A rank that leaves gives a deadline, so that a store that hangs does not hold it up
  // (kTimeout). A foreign store may not support the deadline.
  Status set(std::string_view key, std::string_view value, Deadline deadline = Deadline::never());
  // Blocks until the key exists.
  Result<Bytes> get(std::string_view key, Deadline deadline);
  // Adds to a decimal counter (0 when absent) and returns the new value.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount);
  // Sets `desired` when the current value equals `expected` (an absent key counts as empty). Returns the value
  // afterwards.
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  // Appends to the value; creates an absent key.
  Status append(std::string_view key, std::string_view value);
  // Blocks until every key exists.
  Status wait(std::span<const std::string> keys, Deadline deadline);
  // Whether every key exists now.
  Result<bool> check(std::span<const std::string> keys);
  // Returns whether the key existed.
  Result<bool> delete_key(std::string_view key);
  Result<std::int64_t> num_keys();
  // Several keys in one round trip where the implementation can.
  Status multi_set(std::span<const std::string> keys, std::span<const Bytes> values);
  Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Deadline deadline);

  // All methods above end here. Checks the limits in limits.h.
  Result<StoreAnswer> ask(StoreCall call);

  // The local address of the connection to the store's server, as a number ("10.0.0.7", "fd00::7"): other machines of
  // the job can reach this machine there. Empty where there is no connection (files, memory) or the address is unknown.
  virtual std::string local_address() const { return {}; }

 private:
  virtual Result<StoreAnswer> answer(StoreCall call) = 0;
};

}  // namespace lockstep::comm
