#include "saving.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "checkpoint/file/sha256.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep::checkpoint {
namespace {

// Of all managers.
struct Unfinished {
  Mutex mutex;
  std::vector<std::weak_ptr<Saving>> savings LOCKSTEP_GUARDED_BY(mutex);
  bool exit_waits LOCKSTEP_GUARDED_BY(mutex) = false;  // finish_all() is going to run
};
Unfinished& unfinished() {
  static constinit OfProcess<Unfinished> all;
  return all.get();
}

void finish_all() {
  std::vector<std::shared_ptr<Saving>> left;
  {
    const MutexLock lock(unfinished().mutex);
    unfinished().exit_waits = false;  // for saves of handlers that exit() runs after this one
    for (const std::weak_ptr<Saving>& known : std::exchange(unfinished().savings, {})) {
      if (auto saving = known.lock()) left.push_back(std::move(saving));
    }
  }
  for (const std::shared_ptr<Saving>& saving : left) {
    saving->thread.join();
    if (saving->reported.exchange(true)) continue;
    try {
      saving->result.get();
    } catch (const std::exception& error) {
      log::error(fmt::format("the last checkpoint was not saved: {}", error.what()));
    }
  }
}

}  // namespace

Result<std::shared_ptr<Saving>> start_saving(std::function<void()> work, std::future<void> copied) {
  keep_openssl_at_exit();  // exit() runs last what was registered first: OpenSSL's end, if it has one
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
  std::shared_future<void> result = task->get_future();
  LOCKSTEP_ASSIGN_OR_RETURN(std::jthread thread, start_thread("the save", [task] { (*task)(); }));
  std::shared_ptr<Saving> saving(new Saving{{}, std::move(copied), std::move(result), false, std::move(thread)},
                                 LeakInForks());
  const MutexLock lock(unfinished().mutex);
  if (!std::exchange(unfinished().exit_waits, true)) static_cast<void>(std::atexit(finish_all));
  std::erase_if(unfinished().savings, [](const std::weak_ptr<Saving>& known) { return known.expired(); });
  unfinished().savings.push_back(saving);
  return saving;
}

}  // namespace lockstep::checkpoint
