// LocalOperation: an operation of a LocalGroup that its caller has started.
#pragma once

#include <list>
#include <memory>
#include <utility>

#include "collective.h"
#include "engine/core/operation.h"

namespace lockstep::comm {

struct LocalOperation final : Operation::State {
  using Operation::State::State;
  std::uint64_t sequence() const override { return collective ? collective->sequence() : 0; }

  // The operation is over: its caller gets the result and its buffers.
  void finish(Status result) {
    status = std::move(result);
    keep_alive.reset();
    over.store(true, std::memory_order_release);
  }

  std::unique_ptr<Collective> collective;                      // null: a transfer
  std::list<std::shared_ptr<LocalOperation>>::iterator place;  // of a transfer, in Mailbox::started()
};

}  // namespace lockstep::comm
