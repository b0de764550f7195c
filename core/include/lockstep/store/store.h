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

class Store {
 public:
  virtual ~Store() = default;

  virtual Status set(std::string_view key, std::string_view value) = 0;
  // The same with a deadline (kTimeout), as far as the store supports deadlines. For ranks that leave and must not wait
  // for a store that hangs.
  virtual Status set_by(std::string_view key, std::string_view value, Deadline /*deadline*/) { return set(key, value); }
  // Blocks until the key exists.
  virtual Result<Bytes> get(std::string_view key, Deadline deadline) = 0;
  // Adds to a decimal counter (0 when absent) and returns the new value.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount) = 0;
  // Sets `desired` when the current value equals `expected` (an absent key counts as empty). Returns the value
  // afterwards.
  virtual Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
  // Appends to the value; creates an absent key.
  virtual Status append(std::string_view key, std::string_view value) = 0;
  // Blocks until every key exists.
  virtual Status wait(std::span<const std::string> keys, Deadline deadline) = 0;
  // Whether every key exists now.
  virtual Result<bool> check(std::span<const std::string> keys) = 0;
  // Returns whether the key existed.
  virtual Result<bool> delete_key(std::string_view key) = 0;
  virtual Result<std::int64_t> num_keys() = 0;

  // The local address of the connection to the store's server, as a number ("10.0.0.7", "fd00::7"): other machines of
  // the job can reach this machine there. Empty where there is no connection (files, memory) or the address is unknown.
  virtual std::string local_address() const { return {}; }

  // Several keys in one round trip where the implementation can.
  virtual Status multi_set(std::span<const std::string> keys, std::span<const Bytes> values);
  virtual Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Deadline deadline);
};

}  // namespace lockstep::comm
