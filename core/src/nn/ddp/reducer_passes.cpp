// How autograd's hooks begin and end the passes of a reducer.
#include <algorithm>
#include <utility>

#include "lockstep/base/log.h"
#include "reducer_impl.h"

namespace lockstep {

using nn_detail::BackwardPass;

void Reducer::Impl::attach_hooks() {
  if (state.backend.world_size() == 1 && !state.hook) return;  // its gradients are the mean already
  state.parameters.attach_hooks(state.group, weak_from_this());
}

bool Reducer::Impl::pass_is_running() const {
  return pass && pass->is_gathering() && !pass->is_interrupted();
}

// Whether a forward pass that begins now is none, but a checkpointed segment in the backward pass of one. Without such
// a forward pass it is a whole pass inside another graph's backward pass.
bool Reducer::Impl::is_recomputing() const {
  return pass_is_running() || state.passes.is_inside_own_backward();
}

void Reducer::Impl::on_gradient(std::size_t index, const torch::Tensor& incoming) {
  if (is_replaced()) return;
  const CallScope scope(state.site);
  if (family_version.load(std::memory_order_relaxed) != nn_detail::users_version()) find_family();
  if (state.has_family.load(std::memory_order_relaxed)) start_family();
  MutexLock lock(mutex);
  state.buckets.learn(index);
  nn_detail::ProgramPasses& passes = state.passes;
  // In doubt the pass sends. One send too many changes no result: the sum of means is the mean of sums.
  if (!passes.backward_runs()) {
    passes.set_backward_guarded(!program_sends());
    passes.set_backward_sends(passes.forward_sends() || program_sends());
  }
  if (!passes.backward_sends()) {
    if (!passes.backward_runs()) watch_end();
    return;
  }
  state.parameters.check_unchanged(index);
  if (!pass_is_running()) start_pass();
  pass->add(index, incoming);
}

void Reducer::Impl::start_pass() {
  warn_of_lost_graph();
  // Something else ends with that backward pass, and begins this one.
  if (pass && pass->is_ending() && !pass->is_interrupted()) finish_pass();
  state.buffers.check_unchanged();
  abandon_pass();
  double exposed = 0;
  {
    const nn_detail::Counting counting(exposed);
    if (before_pass) before_pass();
  }
  pass.emplace(state, BackwardPass::Kind::kOwn, state.passes.forward_was_called(), exposed);
  pass->belongs_to(watch_end());
  if (state.sends_buffers_early) state.start_buffers();
}

// In a backward pass gradients are on with create_graph alone. The mean is made in place, and has no graph.
void Reducer::Impl::warn_of_lost_graph() {
  if (!torch::GradMode::is_enabled() || std::exchange(warned, true) || state.backend.rank() != 0) return;
  log::warning(
      "DistributedDataParallel: backward() was called with create_graph. Gradients are the mean over ranks, but have "
      "no graph, so there are no second derivatives through them; torch::autograd::grad leaves the wrapper out, and "
      "gives an inner gradient its graph");
}

// A pass ends with the backward pass of its forward pass. Checkpointed segments run backward passes inside that.
std::weak_ptr<const void> Reducer::Impl::watch_end() {
  // Destroyed with the backward pass, also by an exception.
  struct Watch {
    std::weak_ptr<Impl> self;
    bool is_set = false;
    ~Watch() {
      const auto impl = is_set ? self.lock() : nullptr;
      if (impl) impl->on_exception();
    }
  };
  const int depth = state.passes.depth_of_backward();
  const auto watch = std::make_shared<Watch>(weak_from_this());
  const auto end = std::make_shared<const nn_detail::EndOfBackward>([watch, depth](int depth_of_end) {
    if (const auto impl = watch->self.lock()) impl->on_end(watch.get(), /*in_part=*/depth_of_end > depth);
  });
  state.passes.begin_backward(end);
  nn_detail::at_end_of_backward(depth, end);
  watch->is_set = true;
  return watch;
}

// Other ranks may still write into the buckets that are under way, whatever the program does with the gradients.
void Reducer::Impl::on_exception() {
  MutexLock lock(mutex);
  if (pass && pass->is_interrupted()) pass->drop_unfinished_gradients();
}

void Reducer::Impl::on_end(const void* backward, bool in_part) {
  const CallScope scope(state.site);
  MutexLock lock(mutex);
  state.passes.end_backward(in_part);
  if (!pass || !pass->is_gathering() || !pass->belongs_to_this(backward)) return;
  pass->end_gathering();
  finish_after_other_reducers();
}

void Reducer::Impl::finish_pass() {
  pass->finish();
  pass.reset();
}

void Reducer::Impl::settle() {
  if (pass && pass->is_interrupted()) abandon_pass();
}

void Reducer::Impl::abandon_pass() {
  if (!pass) return;
  pass->abandon();
  pass.reset();
}

}  // namespace lockstep
