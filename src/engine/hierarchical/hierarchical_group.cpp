#include "hierarchical_group.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fault_point.h"
#include "engine/core/error_text.h"
#include "engine/core/timing.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBytesUnderWay = std::size_t{512} << 10;
// A wait in which nothing moves spins, yields its core up to kYieldFor, then sleeps on the transport. Ranks of its own
// machine do not wake it, so it sleeps only kNap at a time, and kLongNap after kLongIdle.
constexpr auto kSpinFor = std::chrono::microseconds(2);
constexpr auto kYieldFor = std::chrono::microseconds(300);
constexpr auto kNap = std::chrono::microseconds(100);
constexpr auto kLongNap = std::chrono::microseconds(1000);
constexpr auto kLongIdle = std::chrono::milliseconds(20);

}  // namespace

HierarchicalGroup::HierarchicalGroup(const CommunicatorOptions& options, Topology topology)
    : Group(options),
      topology_(std::move(topology)),
      greeted_(topology_.world()),
      left_(topology_.world()),
      known_causes_(topology_.world()),
      conditions_(topology_.world()),
      answered_(topology_.world()) {}

HierarchicalGroup::~HierarchicalGroup() {
  close();
}

Result<std::shared_ptr<HierarchicalOperation>> HierarchicalGroup::begin(Request request, bool blocking,
                                                                        Communicator::KeepAlive keep_alive,
                                                                        Deadline admission) {
  LOCKSTEP_RETURN_IF_ERROR(wait_until_over(
      [this]() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return closed_ || pending_ < Communicator::kMaxPending; }, nullptr,
      admission));
  MutexLock lock(mutex_);
  if (closed_) return destroyed();
  if (!break_status_.ok()) return break_status_;
  auto operation = std::make_shared<HierarchicalOperation>();
  operation->request = std::move(request);
  operation->blocking = blocking;
  operation->keep_alive = std::move(keep_alive);
  operation->sequence = next_sequence();
  operation->call = make_call(operation->request, rank_);
  operation->calls.resize(world_size());
  operation->steps.push_back(
      std::make_unique<MeetingStep>(*context_, reinterpret_cast<const std::byte*>(&operation->call),
                                    reinterpret_cast<std::byte*>(operation->calls.data()), sizeof(Call)));
  note_call(rank_, call_word(operation->sequence, operation->request.kind));
  queue_.push_back(operation);
  ++pending_;
  LOCKSTEP_FAULT_POINT("hierarchical: called");
  progress_all();
  return operation;
}

// Two large steps keep the network busy; more would only push one another out of the caches.
bool HierarchicalGroup::has_room() const {
  return active_.size() < kWindow && (active_.size() < 2 || under_way_ < kBytesUnderWay);
}

void HierarchicalGroup::begin_steps() {
  while (!queue_.empty() && has_room() && break_status_.ok()) {
    const std::shared_ptr<HierarchicalOperation>& operation = queue_.front();
    if (operation->steps.empty()) {
      if (!operation->planned) return;  // the meeting is not over yet
      queue_.pop_front();
      continue;
    }
    Active active;
    active.operation = operation;
    active.step = std::move(operation->steps.front());
    under_way_ += active.step->bytes();
    operation->steps.pop_front();
    ++operation->active;
    active.step->messages().number(next_step_++);
    auto request = active.step->before();
    if (!request.ok()) {
      (void)break_group(request.status().code(), fmt::format("{} cannot take part in {}: {}", me(),
                                                             describe(*operation), request.status().message()));
      return;
    }
    if (request->kind != Kind::kNone) {
      auto started = before_->launch(std::move(request).value(), nullptr,
                                     operation->blocking ? Caller::kTests : Caller::kGoesOn, Deadline::never());
      if (!started.ok()) return;  // the local group is broken; check() will find out
      active.local = std::move(started).value();
    }
    active_.push_back(std::move(active));
    active_.back().step->expect();
  }
}

bool HierarchicalGroup::local_is_over(Active& active) {
  if (active.local == nullptr) return true;
  if (!local_group(active).test_locally(*active.local)) return false;
  return active.local->over.load(std::memory_order_acquire) && active.local->status.ok();
}

// Takes a step one stage further, if possible.
bool HierarchicalGroup::progress_step(Active& active) {
  switch (active.stage) {
    case Stage::kBefore:
      if (!local_is_over(active)) return false;
      active.local.reset();
      active.stage = Stage::kExchange;
      LOCKSTEP_FAULT_POINT("hierarchical: exchange");
      return true;
    case Stage::kExchange:
      if (!active.step->exchange()) return false;
      active.stage = Stage::kWaiting;
      LOCKSTEP_FAULT_POINT("hierarchical: exchanged");
      return true;
    case Stage::kWaiting: {
      auto request = active.step->after();
      if (!request.ok()) return false;
      auto started = after_->launch(std::move(request).value(), nullptr,
                                    active.operation->blocking ? Caller::kTests : Caller::kGoesOn, Deadline::never());
      if (!started.ok()) return false;
      active.local = std::move(started).value();
      active.stage = Stage::kAfter;
      return true;
    }
    case Stage::kAfter:
      if (!local_is_over(active)) return false;
      active.stage = Stage::kDone;
      LOCKSTEP_FAULT_POINT("hierarchical: step over");
      return true;
    case Stage::kDone: break;
  }
  return false;
}

bool HierarchicalGroup::progress_all() {
  if (!break_status_.ok()) return false;
  bool moved = transport_->progress();
  if (!reported_break_.ok()) {
    (void)break_group(reported_break_.code(), reported_break_.message());
    return true;
  }
  if (std::exchange(asked_, false)) send_news(/*conditions=*/true);
  moved = mailbox_->progress() || moved;
  while (!outgoing_.empty() && outgoing_.front().first.done) outgoing_.pop_front();
  begin_steps();
  bool in_turn = true;  // local operations after the exchange begin in the order of the steps
  for (Active& active : active_) {
    while (active.stage != Stage::kDone && (active.stage != Stage::kWaiting || in_turn) && progress_step(active))
      moved = true;
    in_turn = in_turn && active.stage > Stage::kWaiting;
  }
  while (!active_.empty() && active_.front().stage == Stage::kDone) {
    const std::shared_ptr<HierarchicalOperation> operation = active_.front().operation;
    active_.front().step->finish();
    under_way_ -= active_.front().step->bytes();
    active_.pop_front();
    step_over(*operation);
    begin_steps();
    moved = true;
  }
  remove_finished_transfers();
  set_busy(break_status_.ok() && (pending_ > 0 || !transfers_.empty()));
  return moved;
}

void HierarchicalGroup::step_over(HierarchicalOperation& operation) {
  --operation.active;
  if (!operation.planned && operation.active == 0 && operation.steps.empty()) finish_meeting(operation);
  if (operation.planned && operation.active == 0 && operation.steps.empty()) end(operation, operation.status);
}

void HierarchicalGroup::end(HierarchicalOperation& operation, Status status) {
  operation.status = std::move(status);
  if (operation.mean && operation.status.ok()) operation.mean->finish(operation.request);
  operation.mean.reset();
  operation.keep_alive.reset();
  operation.over.store(true, std::memory_order_release);
  --pending_;
}

// All records, or all tables of sizes, are here. They are the same on every rank, so every rank decides the same.
void HierarchicalGroup::finish_meeting(HierarchicalOperation& operation) {
  const bool sized = !operation.table.empty();
  for (int rank = 0; rank < world_size() && !sized; ++rank) {
    note_call(rank, call_word(operation.sequence, operation.calls[rank].kind));
  }
  operation.status =
      sized ? check_sizes(operation.table, world_size(), operation.request.kind, names(), operation.sequence)
            : agreement(operation.calls, names(), operation.sequence);
  if (!sized && !lists_agree(operation.calls)) {
    (void)break_group(operation.status.code(), operation.status.message());
  } else if (!operation.status.ok()) {
    operation.planned = true;
  } else if (!sized && is_carried(operation.calls)) {
    apply_payloads(operation);
    operation.planned = true;
  } else if (!sized && !are_even(operation.calls)) {
    operation.row = size_row(operation.request, rank_, world_size());
    operation.table.resize(operation.row.size() * world_size());
    operation.steps.push_back(std::make_unique<MeetingStep>(
        *context_, reinterpret_cast<const std::byte*>(operation.row.data()),
        reinterpret_cast<std::byte*>(operation.table.data()), operation.row.size() * sizeof(SizeEntry)));
  } else {
    plan(operation);
  }
}

void HierarchicalGroup::plan(HierarchicalOperation& operation) {
  if (IntegerMean::is_needed(operation.request)) {
    operation.mean = std::make_unique<IntegerMean>(operation.request, operation.table);
  }
  const Request& request = operation.mean ? operation.mean->request() : operation.request;
  auto steps = plan_steps({*context_, request, operation.table});
  std::move(steps.begin(), steps.end(), std::back_inserter(operation.steps));
  operation.planned = true;
}

void HierarchicalGroup::apply_payloads(HierarchicalOperation& operation) const {
  const Request& request = operation.request;
  const auto place = [&](const Piece& piece, int from) {
    const std::byte* data = operation.calls[from].payload.data();
    if (piece.bytes > 0 && piece.data != data) std::memmove(piece.data, data, piece.bytes);
  };
  if (request.kind == Kind::kAllReduce || (request.kind == Kind::kReduce && rank_ == request.root)) {
    std::vector<const std::byte*> inputs;
    for (const Call& call : operation.calls) inputs.push_back(call.payload.data());
    auto* output = static_cast<std::byte*>(request.output.data);
    reduce({request.type, request.op, request.factor}, inputs, std::span(&output, 1), request.count);
  } else if (request.kind == Kind::kBroadcast) {
    place(request.output, request.root);
  }
  for (std::size_t from = 0; from < request.outputs.size(); ++from)
    place(request.outputs[from], static_cast<int>(from));
}

void HierarchicalGroup::remove_finished_transfers() {
  const Transfer* lost = nullptr;
  std::erase_if(transfers_, [&](const std::shared_ptr<Operation::State>& state) {
    const Transfer& transfer = state->transfer;
    if (!transfer.over) return false;
    if (transfer.status.code() == ErrorCode::kPeerFailed) {
      lost = &transfer;
      return false;
    }
    state->status = transfer.status;
    state->keep_alive.reset();
    state->over.store(true, std::memory_order_release);
    return true;
  });
  // The peer is gone in the middle of a message. The group breaks, and this transfer gets the group's error.
  if (lost == nullptr || !check_local_groups().ok()) return;
  (void)break_group(ErrorCode::kPeerFailed,
                    loss_of(lost->is_send ? lost->peer : lost->from, comm::describe(*lost, names())));
}

bool HierarchicalGroup::pause(Clock::duration idle) {
  if (idle < kSpinFor) {
    cpu_relax();
    return false;
  }
  if (GroupRegistry::of_process().progress_others(*this).moved) return true;
  if (idle < kYieldFor) {
    sched_yield();
    return false;
  }
  {
    MutexLock lock(mutex_);
    if (!break_status_.ok() || !transport_->may_sleep()) return false;
  }
  transport_->sleep(idle < kLongIdle ? kNap : kLongNap);
  return false;
}

Status HierarchicalGroup::wait_until_over(const std::function<bool()>& over, const Transfer* transfer,
                                          Deadline deadline) {
  auto progressed = Clock::now();
  auto last_check = progressed;
  auto idle_since = progressed;
  for (;;) {
    const auto now = Clock::now();
    {
      MutexLock lock(mutex_);
      if (over()) return {};
      if (!break_status_.ok()) return break_status_;
      if (progress_all()) progressed = idle_since = now;
      if (over()) return {};
      if (!break_status_.ok()) return break_status_;
      const bool expired = !deadline.is_never() && now >= deadline.when();
      if (expired || now - last_check >= kCheckEvery) {
        last_check = now;
        const Status status = check(transfer, expired, progressed);
        if (!status.ok()) return over() ? Status() : status;
      }
    }
    if (pause(now - idle_since)) idle_since = now;
  }
}

Status HierarchicalGroup::run(const RequestView& request, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto operation, begin(request.copy(), /*blocking=*/true, nullptr, deadline));
  LOCKSTEP_RETURN_IF_ERROR(wait_until_over([&] { return operation->over.load(); }, nullptr, deadline));
  return operation->status;
}

Result<std::shared_ptr<Operation::State>> HierarchicalGroup::start(Request request, KeepAlive keep_alive,
                                                                   Deadline admission) {
  auto started = std::make_shared<StartedCollective>(shared_from_this());
  LOCKSTEP_ASSIGN_OR_RETURN(started->operation,
                            begin(std::move(request), /*blocking=*/false, std::move(keep_alive), admission));
  return std::shared_ptr<Operation::State>(std::move(started));
}

Status HierarchicalGroup::begin(const std::shared_ptr<Operation::State>& transfer) {
  if (closed_) return destroyed();
  if (!break_status_.ok()) return break_status_;
  mailbox_->start(transfer->transfer);
  transfers_.push_back(transfer);
  return {};
}

Status HierarchicalGroup::run(Transfer transfer, Deadline deadline) {
  const auto state = std::make_shared<Operation::State>(shared_from_this());
  state->transfer = std::move(transfer);
  {
    MutexLock lock(mutex_);
    LOCKSTEP_RETURN_IF_ERROR(begin(state));
  }
  return wait(*state, deadline);
}

Result<std::shared_ptr<Operation::State>> HierarchicalGroup::start(Transfer transfer, KeepAlive keep_alive) {
  auto state = std::make_shared<Operation::State>(shared_from_this());
  state->keep_alive = std::move(keep_alive);
  state->transfer = std::move(transfer);
  MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(begin(state));
  progress_all();
  return state;
}

Status HierarchicalGroup::wait(Operation::State& state, Deadline deadline) {
  const auto* const collective = dynamic_cast<const StartedCollective*>(&state);
  const Transfer* const transfer = collective != nullptr ? nullptr : &state.transfer;
  LOCKSTEP_RETURN_IF_ERROR(wait_until_over([&] { return state.is_over(); }, transfer, deadline));
  return collective != nullptr ? collective->operation->status : state.status;
}

bool HierarchicalGroup::test(Operation::State& state) {
  if (state.is_over()) return true;
  {
    MutexLock lock(mutex_);
    Watch& watch = state.watch;
    const auto now = Clock::now();
    if (progress_all()) watch.progressed = now;
    if (now - watch.checked >= kCheckEvery && break_status_.ok() && !state.is_over()) {
      // Time between calls of test() does not count as time without progress.
      const auto unwatched = now - watch.checked - kCheckEvery;
      watch.progressed = std::min(now, watch.progressed + unwatched);
      watch.checked = now;
      const bool is_collective = dynamic_cast<const StartedCollective*>(&state) != nullptr;
      (void)check(is_collective ? nullptr : &state.transfer, /*expired=*/false, watch.progressed);
    }
    if (state.is_over() || !break_status_.ok()) return true;
  }
  GroupRegistry::of_process().progress_others(*this);
  return false;
}

bool HierarchicalGroup::try_progress() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  return !closed_ && progress_all();
}

void HierarchicalGroup::progress() {
  MutexLock lock(mutex_);
  if (pending_ > 0 || !mailbox_->idle()) progress_all();
}

void HierarchicalGroup::abort(const std::string& reason) {
  MutexLock lock(mutex_);
  (void)break_group(ErrorCode::kAborted, caused(known_cause(rank_), reason));
}

Status HierarchicalGroup::health() const {
  MutexLock lock(mutex_);
  if (!break_status_.ok()) return break_status_;
  const Status local = before_->health();
  return local.ok() ? after_->health() : local;
}

}  // namespace lockstep::comm
