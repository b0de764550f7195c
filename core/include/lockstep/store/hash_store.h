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

  std::string local_address() const override { return "127.0.0.1"; }  // its users are threads of one process

 private:
  Result<StoreAnswer> answer(StoreCall call) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
