#include "lockstep/nn/reducer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "c10d/world/own_group.h"
#include "module_state.h"
#include "reducer_impl.h"

namespace lockstep {
namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

nn_detail::ReducerState::ReducerState(std::vector<NamedParameter> the_parameters,
                                      std::vector<NamedParameter> the_buffers, const ProcessGroup& outer_group,
                                      const ReducerOptions& the_options, CallSite the_site,
                                      ReducedParameters::OnGradient on_gradient)
    : options(the_options),
      site(the_site),
      group(own_group(outer_group, trained_device(the_parameters).type(), "Reducer")),
      backend(group, trained_device(the_parameters)),
      parameters(std::move(the_parameters), backend, std::move(on_gradient)),
      buckets(backend, parameters, options),
      buffers(backend, std::move(the_buffers)),
      sends_buffers_early(backend.device().is_cpu() && !buffers.empty()) {
  if (backend.orders_by_stream()) hook_stream.emplace(backend.device());
}

Reducer::Impl::Impl(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers,
                    const ProcessGroup& group, const ReducerOptions& options, CallSite site)
    : number(next_number()),
      state(std::move(parameters), std::move(buffers), group, options, site,
            [this](std::size_t index, const torch::Tensor& incoming) { on_gradient(index, incoming); }) {}

Reducer::Reducer(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, ProcessGroup group,
                 const ReducerOptions& options, CallSite site)
    : impl_(std::make_shared<Impl>(std::move(parameters), std::move(buffers), group, options, site)) {
  MutexLock lock(impl_->mutex);
  impl_->attach_hooks();
}

Reducer::~Reducer() {
  MutexLock lock(impl_->mutex);
  impl_->detach();
}

void Reducer::Impl::detach() {
  bool under_way = state.buffers.under_way() || (state.report && state.report->under_way());
  if (pass) {
    pass->drop_unfinished_gradients();
    under_way = under_way || pass->under_way();
  }
  if (under_way) keep_own_group(state.group);
  state.parameters.detach_hooks();
  state.buckets.detach();
}

void Reducer::detach_replaced(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    const nn_detail::UsersPtr users = nn_detail::users_of(parameter.tensor);
    if (!users) continue;
    for (const std::shared_ptr<void>& reducer : nn_detail::reducers_of(users)) {
      Impl& impl = *static_cast<Impl*>(reducer.get());
      if (!impl.is_replaced()) continue;
      MutexLock lock(impl.mutex);
      impl.detach();
    }
  }
}

// The program's calls around a forward pass.

void Reducer::check_sizes() const {
  MutexLock lock(impl_->mutex);  // buffers may be replaced
  impl_->state.parameters.check_sizes();
  impl_->state.buffers.check_unchanged();
}
void Reducer::check_group() const {
  if (const Status replaced = impl_->state.backend.replaced(); !replaced.ok())
    throw_status(replaced, "DistributedDataParallel");
}
void Reducer::before_forward() {
  check_group();
  impl_->settle_family();
  MutexLock lock(impl_->mutex);
  if (impl_->is_recomputing()) return;
  nn_detail::ReducerState& state = impl_->state;
  state.passes.leave_last_forward(state.parameters);
  impl_->abandon_pass();
  state.parameters.follow_stream();
  impl_->attach_hooks();
  const bool with_graph = torch::GradMode::is_enabled();
  state.passes.begin_forward(impl_->program_sends(), with_graph);
  if (with_graph) state.buckets.begin_placing();
}
void Reducer::after_forward(bool training) {
  MutexLock lock(impl_->mutex);
  impl_->state.passes.expect_backward(training);
}
void Reducer::forget_lost_forward() {
  MutexLock lock(impl_->mutex);
  nn_detail::ReducerState& state = impl_->state;
  // After an exception autograd may keep a part of the graph until the thread's next backward pass.
  if (state.passes.is_interrupted() || !state.parameters.have_graph()) state.passes.forget_sending();
}
void Reducer::forget_forward() {
  nn_detail::ProgramPasses::forget_all();
}
void Reducer::settle() {
  impl_->settle_family();
  MutexLock lock(impl_->mutex);
  impl_->settle();
}
bool Reducer::is_recomputing() const {
  MutexLock lock(impl_->mutex);
  return impl_->is_recomputing();
}
void Reducer::shadow_pass() {
  const CallScope scope(impl_->state.site);
  MutexLock lock(impl_->mutex);
  impl_->run_pass_of_others(nn_detail::BackwardPass::Kind::kShadow);
}
void Reducer::pass_without_input() {
  const CallScope scope(impl_->state.site);
  MutexLock lock(impl_->mutex);
  impl_->run_pass_of_others(nn_detail::BackwardPass::Kind::kWithoutInput);
}
void Reducer::Impl::run_pass_of_others(nn_detail::BackwardPass::Kind kind) {
  // No forward pass belongs to it, so one before it was dropped.
  if (kind == nn_detail::BackwardPass::Kind::kWithoutInput) state.passes.leave_last_forward(state.parameters);
  abandon_pass();
  if (state.sends_buffers_early) state.start_buffers();
  pass.emplace(state, kind, /*follows_forward=*/false, /*exposed=*/0);
  pass->end_gathering();
  finish_pass();
  state.passes.forget_sending();  // as on the ranks whose own backward pass it was
}

// Settings.

void Reducer::set_synchronises(std::function<bool()> synchronises) {
  MutexLock lock(impl_->mutex);
  impl_->synchronises = std::move(synchronises);
}
void Reducer::set_before_pass(std::function<void()> callback) {
  MutexLock lock(impl_->mutex);
  impl_->before_pass = std::move(callback);
}
void Reducer::set_replaced_buffers(std::function<std::vector<torch::Tensor>()> callback) {
  MutexLock lock(impl_->mutex);
  impl_->state.replaced_buffers = std::move(callback);
}
void Reducer::follow_buffers() {
  MutexLock lock(impl_->mutex);
  impl_->state.follow_buffers();
}
void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  MutexLock lock(impl_->mutex);
  impl_->state.hook = std::move(hook);
  impl_->state.hook_is_checked = false;
  impl_->attach_hooks();
}

// Without the lock, because `before_pass`, which runs under it, may call these three. They are atomic.

void Reducer::set_buffer_source(int rank) {
  impl_->state.buffer_source = rank;
}
void Reducer::set_gradient_scale(double scale) {
  impl_->state.gradient_scale = scale;
}
bool Reducer::continues_pass() const {
  return impl_->state.passes.is_over_in_part();
}

// What the program may ask.

std::string Reducer::shared_parameter() const {
  MutexLock lock(impl_->mutex);
  const nn_detail::ReducedParameters& all = impl_->state.parameters;
  const auto shared = std::find_if(all.begin(), all.end(), [](const auto& parameter) { return parameter.is_shared(); });
  return shared == all.end() ? "" : shared->name;
}
std::size_t Reducer::bucket_bytes() const {
  MutexLock lock(impl_->state.statistics.mutex);
  return impl_->state.statistics.bucket_bytes;
}
Reducer::PlacementStats Reducer::placement() const {
  MutexLock lock(impl_->state.statistics.mutex);
  return impl_->state.statistics.placement;
}
Reducer::SentBytes Reducer::sent() const {
  MutexLock lock(impl_->state.statistics.mutex);
  return impl_->state.statistics.sent;
}
std::optional<Reducer::CommTime> Reducer::comm_time() const {
  if (!impl_->state.backend.device().is_cpu()) return std::nullopt;
  MutexLock lock(impl_->state.statistics.mutex);
  return impl_->state.statistics.comm_time;
}

}  // namespace lockstep
