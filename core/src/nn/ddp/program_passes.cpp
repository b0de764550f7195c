#include "program_passes.h"

#include <algorithm>
#include <utility>

namespace lockstep::nn_detail {
namespace {

std::atomic<std::uint64_t>& forget_count() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

}  // namespace

void ProgramPasses::forget_all() {
  ++forget_count();
}

void ProgramPasses::forget_where_told() {
  const std::uint64_t now = forget_count();
  if (std::exchange(forgotten_, now) == now) return;
  expected_ = Expected::kNot;
  forwards_ = dropped_ = 0;
}

void ProgramPasses::leave_last_forward(const ReducedParameters& parameters) {
  if (is_interrupted()) expected_ = Expected::kNot;
  forget_where_told();
  const Expected expected = forward_ == Forward::kOver ? Expected::kNot : expected_;
  expected_ = Expected::kNot;
  const bool may_come = expected != Expected::kNot && parameters.have_graph();
  if (expected == Expected::kYes && !may_come) ++dropped_;
  forward_sends_ = forward_sends_ && may_come;
  backward_began_ = false;
}

// One backward pass may be that of several forward passes, of which only some were under no_sync.
void ProgramPasses::begin_forward(bool sends, bool with_graph) {
  forward_ = Forward::kAwaited;
  forward_sends_ = forward_sends_ || sends;
  depth_ = backward_depth();
  called_ = called_ || with_graph;
  forwards_ += sends && with_graph ? 1 : 0;
}

void ProgramPasses::expect_backward(bool training) {
  if (forward_ == Forward::kOver || !forward_sends_) return;
  expected_ = std::max(expected_, training ? Expected::kYes : Expected::kPerhaps);
}

void ProgramPasses::begin_backward(const std::shared_ptr<const EndOfBackward>& end) {
  end_ = end;
  backward_began_ = true;
}

void ProgramPasses::end_backward(bool in_part) {
  end_.reset();
  forward_ = in_part ? Forward::kOverInPart : Forward::kOver;
  forward_sends_ = forward_sends_ && in_part;
  called_ = backward_began_ = false;
}

ProgramPasses::Dropped ProgramPasses::dropped(bool without_input) {
  forget_where_told();
  if (without_input) return {std::max<std::size_t>(dropped_, 1) - 1, std::max(dropped_, forwards_)};
  return {dropped_, std::max(dropped_, std::max<std::size_t>(forwards_, 1) - 1)};
}

std::size_t ProgramPasses::take_dropped() {
  forwards_ = 0;
  return std::exchange(dropped_, 0);
}

}  // namespace lockstep::nn_detail
