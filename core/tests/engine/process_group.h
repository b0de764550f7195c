// The group of a rank that launch::spawn has started, over the store that its environment names.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/engine/communicator.h"
#include "lockstep/store/rendezvous.h"
#include "support/process.h"

namespace lockstep::test {

class ProcessGroup {
 public:
  ProcessGroup() {
    auto met = comm::rendezvous(comm::RendezvousOptions());
    if (!met.ok()) throw std::runtime_error(met.status().message());
    rendezvous_ = std::move(met).value();
    group_ = join("world");
  }
  ~ProcessGroup() {
    group_.reset();
    (void)rendezvous_.release(std::chrono::seconds(2));
  }
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Another group of the same ranks.
  std::unique_ptr<comm::Communicator> join(const std::string& name) const {
    comm::CommunicatorOptions options;
    options.rank = rendezvous_.rank;
    options.group_size = rendezvous_.world_size;
    options.name = name;
    auto made = comm::Communicator::create(rendezvous_.store, options);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    return std::move(made).value();
  }

  comm::Communicator* operator->() const { return group_.get(); }
  comm::Communicator& operator*() const { return *group_; }
  // Blocks until a signal has stopped the rank's process. False: it runs on.
  bool wait_until_stopped(int rank) const {
    return wait_for([&] { return is_stopped(rendezvous_.members[rank].pid); });
  }
  // For the test's own signals between ranks.
  comm::Store& store() const { return *rendezvous_.store; }

 private:
  comm::Rendezvous rendezvous_;
  std::unique_ptr<comm::Communicator> group_;
};

}  // namespace lockstep::test
