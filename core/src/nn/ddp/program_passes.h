// ProgramPasses: what a reducer knows of the program's forward and backward passes, also of those that send nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "end_of_backward.h"
#include "reduced_parameters.h"

namespace lockstep::nn_detail {

class ProgramPasses {
 public:
  // The forward pass. `sends`: whether its backward pass sends something in any case. `with_graph`: whether gradients
  // are on.
  void begin_forward(bool sends, bool with_graph);
  // Before begin_forward(): counts the last forward pass as dropped if no backward pass can follow it any more. Else it
  // stays a reason for that backward pass to send.
  void leave_last_forward(const ReducedParameters& parameters);
  // The forward pass is one that a backward pass should follow, or in evaluation mode one that it may follow.
  void expect_backward(bool training);
  // No earlier forward pass is a reason for a backward pass to send any more.
  void forget_sending() { forward_sends_ = false; }
  // All forward passes so far, of all reducers of this process, are none that a backward pass should follow.
  static void forget_all();

  bool forward_sends() const { return forward_sends_; }
  // Whether there was a forward pass since the last backward pass.
  bool forward_was_called() const { return called_; }
  // Whether the caller is inside the backward pass of the last forward pass: a checkpointed segment is computed again.
  bool is_inside_own_backward() const { return forward_ != Forward::kOver && backward_depth() > depth_; }
  // Whether a part of the last forward pass's backward pass is over, so that another part may follow. Needs no lock.
  bool is_over_in_part() const { return forward_ == Forward::kOverInPart; }

  // The backward pass. `end` lives as long as autograd will call it. `sends`: whether the pass makes gradients their
  // mean.
  void begin_backward(const std::shared_ptr<const EndOfBackward>& end);
  void end_backward(bool in_part);
  // How many backward passes the backward pass of the last forward pass is inside of, itself included.
  int depth_of_backward() const { return depth_ + 1; }
  bool backward_runs() const { return !end_.expired(); }
  bool backward_sends() const { return backward_sends_; }
  void set_backward_sends(bool sends) { backward_sends_ = sends; }
  // Whether the pass began under no_sync.
  bool backward_is_guarded() const { return backward_is_guarded_; }
  void set_backward_guarded(bool guarded) { backward_is_guarded_ = guarded; }
  // Whether an exception has ended the backward pass of the last forward pass.
  bool is_interrupted() const { return backward_began_ && end_.expired(); }

  // How many forward passes have gone without a backward pass since the last pass that sent: at least and at most. A
  // forward pass whose graph is still alive may have been dropped, or belong to the present pass. `without_input`: none
  // belongs to the present pass, which may stand for one that was dropped.
  struct Dropped {
    std::size_t least;
    std::size_t most;
  };
  Dropped dropped(bool without_input);
  // A pass that sends is over: counts anew. Returns how many were certainly dropped.
  std::size_t take_dropped();

 private:
  // How far the backward pass of the last forward pass has come.
  enum class Forward { kOver, kAwaited, kOverInPart };
  // Whether a backward pass should follow the last forward pass, which else counts as dropped, or may follow it.
  enum class Expected { kNot, kPerhaps, kYes };

  void forget_where_told();

  std::atomic<Forward> forward_ = Forward::kOver;
  bool forward_sends_ = false;
  int depth_ = 0;  // of backward passes that the last forward pass was inside of
  bool called_ = false;
  bool backward_began_ = false;  // since the last forward pass
  std::weak_ptr<const EndOfBackward> end_;
  bool backward_sends_ = true;
  bool backward_is_guarded_ = false;

  Expected expected_ = Expected::kNot;
  std::size_t forwards_ = 0;     // calls that may have been such forward passes, since the last pass that sent
  std::size_t dropped_ = 0;      // forward passes that no backward pass can follow, since then
  std::uint64_t forgotten_ = 0;  // how often forget_all() had been called
};

}  // namespace lockstep::nn_detail
