// A store inside one process: for tests, for a world of one, and for ranks that are threads.
#pragma once

#include <memory>

#include "lockstep/store/store.h"

namespace lockstep::comm {

// Values live as long as the object. Thread-safe. Limits as for every store: see kMaxValueBytes in limits.h.
class HashStore final : public Store {
 public:
  HashStore();
  ~HashStore() override;

  Status set(std::string_view key, std::string_view value) override;
  Result<Bytes> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  Status append(std::string_view key, std::string_view value) override;
  Status wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  std::string local_address() const override { return "127.0.0.1"; }  // its users are threads of one process

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
