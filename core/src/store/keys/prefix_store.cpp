#include "lockstep/store/prefix_store.h"

#include <utility>

namespace lockstep::comm {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> inner)
    : prefix_(std::move(prefix)), inner_(std::move(inner)) {}

Result<StoreAnswer> PrefixStore::answer(StoreCall call) {
  for (std::string& key : call.keys) key.insert(0, prefix_ + "/");
  return inner_->ask(std::move(call));
}

}  // namespace lockstep::comm
