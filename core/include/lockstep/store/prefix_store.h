// A view of another store under "<prefix>/", so that groups that share one store do not see one another's keys.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::comm {

// Thread-safe if the inner store is; shares its ownership. num_keys() counts the whole inner store, as in
// torch.distributed. Errors name keys with their prefix.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> inner);

  Status set(std::string_view key, std::string_view value) override;
  Status set_by(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<Bytes> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  Status append(std::string_view key, std::string_view value) override;
  Status wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  std::string local_address() const override { return inner_->local_address(); }
  Status multi_set(std::span<const std::string> keys, std::span<const Bytes> values) override;
  Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Deadline deadline) override;

 private:
  std::string full(std::string_view key) const;
  std::vector<std::string> full(std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> inner_;
};

}  // namespace lockstep::comm
