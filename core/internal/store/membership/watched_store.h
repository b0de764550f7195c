// A store for ranks that make a group: a wait for a key ends once one of them is gone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct WatchOptions {
  std::chrono::milliseconds every{200};  // how often a wait looks
  // A key of the store: a wait also looks once the key exists. Asked for before each part of a wait. Null: none.
  std::function<std::string()> alarm = {};
  // The error in place of kUnavailable. Null: the same.
  std::function<Status(const Status& why)> lost = {};
};

// A view of `store`. Its waits call `look`, and fail with its error unless the key is there by then.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<Status()> look,
                                          WatchOptions options = {});

}  // namespace lockstep::comm
