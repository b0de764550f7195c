// A store for ranks that make a group: a wait for a key ends once one of them is gone.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

// A view of `store`. Its waits call `look` every 0.2 s, and fail with its error unless the key is there by then.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<Status()> look);

}  // namespace lockstep::comm
