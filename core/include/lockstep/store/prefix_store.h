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

  std::string local_address() const override { return inner_->local_address(); }

 private:
  Result<StoreAnswer> answer(StoreCall call) override;

  std::string prefix_;
  std::shared_ptr<Store> inner_;
};

}  // namespace lockstep::comm
