// The seam through which this library calls a backend, past LibTorch's dispatcher. It does what the dispatcher would:
// c10d's pre and post hooks of the process group fire (LibTorch 2.15). And it records calls of backends other than the
// CPU engine, which records its own, in the flight recorder.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "flight/recorder.h"

namespace lockstep {

class BackendCall {
 public:
  // `root`: the group rank of the root or the other end; -1: none. `tag`: of a message.
  BackendCall(c10d::ProcessGroup* group, c10d::Backend& backend, flight::Op op, bool async, std::int64_t root = -1,
              int tag = 0)
      : group_(group), backend_(backend), op_(op), async_(async), root_(root), tag_(tag) {}

  // Runs `run`, which calls the backend and returns its work. The tensors are those of the call, in the order of c10d's
  // methods: outputs first. What follows the two is ignored.
  template <typename Run, typename... Tensors>
  c10::intrusive_ptr<c10d::Work> call(const Run& run, const Tensors&... tensors) const {
    const std::int64_t hook = fire(tensors...);
    if (is_engine(backend_)) return finish(run(), hook, {});
    const flight::Ticket ticket = begin(tensors...);
    try {
      return finish(run(), hook, ticket);
    } catch (...) {
      failed(ticket);
      throw;
    }
  }

 private:
  using List = std::vector<at::Tensor>;
  using Lists = std::vector<List>;

  static bool is_engine(const c10d::Backend& backend);

#ifdef C10D_BACKEND_HAS_HOOKS
  c10d::HookOpName hook_name() const;
  std::int64_t fire() const {
    return group_ == nullptr ? 0 : group_->firePreHook(hook_name(), async_, root_);
  }
  template <typename Tensors>
  std::int64_t fire(const Tensors& tensors) const {
    return group_ == nullptr ? 0 : group_->firePreHook(hook_name(), async_, root_, tensors);
  }
  // A message. What is received is an output, as for the dispatcher.
  std::int64_t fire(const at::Tensor& tensor) const {
    return op_ == flight::Op::kSend ? fire(List{tensor}) : fire(List{tensor}, List());
  }
  template <typename Outputs, typename Inputs, typename... More>
  std::int64_t fire(const Outputs& outputs, const Inputs& inputs, const More&...) const {
    return group_ == nullptr ? 0 : group_->firePreHook(hook_name(), async_, root_, inputs, outputs);
  }
#else
  template <typename... Tensors>
  std::int64_t fire(const Tensors&...) const {
    return 0;
  }
#endif

  struct Size {
    std::uint64_t elements = 0;
    std::uint8_t type = 0;
  };
  static Size size_of(const at::Tensor& tensor);
  static Size size_of(const List& tensors);
  static Size size_of(const Lists& lists);
  flight::Ticket begin() const {
    return begin_sized({}, {});
  }
  template <typename Tensors>
  flight::Ticket begin(const Tensors& tensors) const {
    return begin_sized(size_of(tensors), size_of(tensors));
  }
  template <typename Outputs, typename Inputs, typename... More>
  flight::Ticket begin(const Outputs& outputs, const Inputs& inputs, const More&...) const {
    return begin_sized(size_of(outputs), size_of(inputs));
  }
  flight::Ticket begin_sized(const Size& output, const Size& input) const;

  c10::intrusive_ptr<c10d::Work> finish(c10::intrusive_ptr<c10d::Work> work, std::int64_t hook,
                                        const flight::Ticket& ticket) const;
  static void failed(const flight::Ticket& ticket);

  [[maybe_unused]] c10d::ProcessGroup* const group_;  // null: hooks have no group to fire on
  c10d::Backend& backend_;
  const flight::Op op_;
  const bool async_;
  const std::int64_t root_;
  const int tag_;
};

}  // namespace lockstep
