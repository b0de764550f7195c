// Workers: the processes of a worker group, by local rank. Those of the start have one supervisor, and each newcomer
// that takes the place of a dead worker has one of its own. The functions are those of ProcessTree.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "launch/process/process_tree.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

class Workers {
 public:
  explicit Workers(ProcessTree start) { groups_.push_back({std::move(start), std::nullopt}); }

  // `tree` has one process, which takes the place of the worker with this local rank. That worker has exited.
  void add(int local_rank, ProcessTree tree) { groups_.push_back({std::move(tree), local_rank}); }

  void add_to(std::vector<pollfd>& polled) const;
  int running() const;
  // Of the last process with this local rank.
  pid_t pid(int local_rank) const;
  // Exit::index is the local rank.
  Result<std::optional<Exit>> next_exit();
  Status signal(int number, std::optional<int> local_rank = {});
  // The first error, after all are ended.
  Status end(std::chrono::milliseconds limit);

 private:
  struct Group {
    ProcessTree tree;
    std::optional<int> newcomer;  // its local rank; nullopt: the workers of the start
  };
  std::vector<Group> groups_;
};

}  // namespace lockstep::launch
