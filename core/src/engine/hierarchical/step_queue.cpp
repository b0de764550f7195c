#include "step_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/fault_point.h"

namespace lockstep::comm {
namespace {

// Of an operation that exchanges less between machines, the progress tells nothing.
constexpr std::size_t kShownBytes = std::size_t{64} << 10;

}  // namespace

void StepQueue::add(const std::shared_ptr<HierarchicalOperation>& operation) {
  board_.note(context_.rank, call_word(operation->sequence, operation->request.kind), operation->call.place);
  queue_.push_back(operation);
  ++pending_;
}

void StepQueue::begin_steps() {
  while (!queue_.empty() && window_.has_room() && failure_.ok()) {
    const std::shared_ptr<HierarchicalOperation>& operation = queue_.front();
    if (!operation->steps.empty()) {
      if (!begin_step(operation)) return;
    } else if (operation->planned) {
      queue_.pop_front();
    } else {
      return;  // the meeting is not over yet
    }
  }
}

// False: this rank cannot begin it, and the group must break.
bool StepQueue::begin_step(const std::shared_ptr<HierarchicalOperation>& operation) {
  Active active;
  active.operation = operation;
  active.step = std::move(operation->steps.front());
  operation->steps.pop_front();
  ++operation->active;
  active.step->messages().set_number(next_step_++);
  auto request = active.step->before();
  if (!request.ok()) {
    failure_ = {request.status().code(), fmt::format("{} cannot take part in {}: {}", context_.me(),
                                                     operation->describe(context_), request.status().message())};
    return false;
  }
  if (request->kind != Kind::kNone) {
    auto started = launch(locals_.before(), std::move(request).value(), operation->blocking);
    if (!started.ok()) {  // the local group is broken
      failure_ = started.status();
      return false;
    }
    active.local = std::move(started).value();
  }
  window_.enter(active.step->bytes());
  active_.push_back(std::move(active));
  active_.back().step->expect();
  return true;
}

Result<std::shared_ptr<LocalOperation>> StepQueue::launch(LocalGroup& group, Request request, bool blocking) const {
  return group.launch(std::move(request), nullptr, blocking ? Caller::kTests : Caller::kGoesOn);
}

bool StepQueue::local_is_over(const Active& active) const {
  if (active.local == nullptr) return true;
  if (!group_of(active).test_locally(*active.local)) return false;
  return active.local->over.load(std::memory_order_acquire) && active.local->status.ok();
}

// Takes a step one phase further, if possible.
bool StepQueue::progress_step(Active& active) const {
  switch (active.phase) {
    case Phase::kBefore:
      if (!local_is_over(active)) return false;
      active.local.reset();
      active.phase = Phase::kExchange;
      LOCKSTEP_FAULT_POINT("hierarchical: exchange");
      return true;
    case Phase::kExchange:
      if (!active.step->exchange()) return false;
      active.phase = Phase::kWaiting;
      LOCKSTEP_FAULT_POINT("hierarchical: exchanged");
      return true;
    case Phase::kWaiting: {
      auto request = active.step->after();
      if (!request.ok()) return false;
      if (request->kind == Kind::kNone) {
        active.phase = Phase::kDone;
        return true;
      }
      auto started = launch(locals_.after(), std::move(request).value(), active.operation->blocking);
      if (!started.ok()) return false;
      active.local = std::move(started).value();
      active.phase = Phase::kAfter;
      return true;
    }
    case Phase::kAfter:
      if (!local_is_over(active)) return false;
      active.phase = Phase::kDone;
      LOCKSTEP_FAULT_POINT("hierarchical: step over");
      return true;
    case Phase::kDone: break;
  }
  return false;
}

bool StepQueue::progress() {
  begin_steps();
  bool moved = false;
  bool in_turn = true;  // local operations after the exchange begin in the order of the steps
  for (Active& active : active_) {
    while (active.phase != Phase::kDone && (active.phase != Phase::kWaiting || in_turn) && progress_step(active))
      moved = true;
    in_turn = in_turn && active.phase > Phase::kWaiting;
  }
  while (failure_.ok() && !active_.empty() && active_.front().phase == Phase::kDone) {
    end_first_step();
    begin_steps();
    moved = true;
  }
  return moved || !failure_.ok();
}

void StepQueue::end_first_step() {
  const std::shared_ptr<HierarchicalOperation> operation = active_.front().operation;
  active_.front().step->finish();
  operation->bytes_done += active_.front().step->bytes();
  window_.leave(active_.front().step->bytes());
  active_.pop_front();
  --operation->active;
  if (!operation->has_ended_steps()) return;
  if (!operation->planned) {
    for (int rank = 0; rank < context_.size() && operation->table.empty(); ++rank)
      board_.note(rank, call_word(operation->sequence, operation->calls[rank].kind));
    if (!operation->finish_meeting(context_)) {
      failure_ = operation->status;
      return;
    }
  }
  if (!operation->planned || !operation->has_ended_steps()) return;
  last_calls_.swap(operation->calls);
  last_met_ = operation->sequence;
  operation->finish(std::move(operation->status));
  --pending_;
}

std::string StepQueue::last_call(int rank) const {
  const std::uint64_t call = board_.latest(rank);
  if (call == 0) return "no call known";
  std::optional<SentPlace> place = board_.place(rank);
  if (!place && last_met_ == sequence_of(call)) place = last_calls_[rank].place;
  return fmt::format("last call {} #{}{}", to_string(kind_of(call)), sequence_of(call),
                     place ? place->describe() : std::string());
}

void StepQueue::fail(const Status& status) {
  for (Active& active : active_) {
    if (active.local != nullptr) (void)group_of(active).wait(*active.local, Deadline::after(std::chrono::seconds(0)));
  }
  std::vector<std::shared_ptr<HierarchicalOperation>> operations(queue_.begin(), queue_.end());
  for (const Active& active : active_) operations.push_back(active.operation);
  for (const auto& operation : operations) {
    if (operation->over.load()) continue;
    operation->finish(status);
    --pending_;
  }
  active_.clear();
  queue_.clear();
}

std::string StepQueue::describe_progress() const {
  const HierarchicalOperation* const operation = oldest();
  if (operation == nullptr || operation->bytes_between < kShownBytes) return {};
  auto done = static_cast<double>(operation->bytes_done);
  for (const Active& active : active_) {
    if (active.operation.get() != operation) continue;
    const auto [exchanged, begun] = active.step->messages().progress();
    if (begun > 0)
      done += static_cast<double>(active.step->bytes()) * static_cast<double>(exchanged) / static_cast<double>(begun);
  }
  constexpr double kMiB = 1 << 20;
  return fmt::format("; {} has exchanged about {:.1f} of {:.1f} MiB with other machines", context_.me(), done / kMiB,
                     static_cast<double>(operation->bytes_between) / kMiB);
}

const HierarchicalOperation* StepQueue::oldest() const {
  if (!active_.empty()) return active_.front().operation.get();
  return queue_.empty() ? nullptr : queue_.front().get();
}

const StepMessages* StepQueue::messages() const {
  return active_.empty() ? nullptr : &active_.front().step->messages();
}

std::vector<int> StepQueue::awaited() const {
  std::vector<int> ranks;
  if (active_.empty()) return ranks;
  const Active& front = active_.front();
  if (front.phase == Phase::kExchange) front.step->messages().awaited(ranks);
  if (front.local != nullptr && front.local->collective->missing() >= 0)
    ranks.push_back(context_.topology.rank_at(context_.machine(), front.local->collective->missing()));
  return ranks;
}

std::optional<StepQueue::LocalPosition> StepQueue::local_position() const {
  if (active_.empty() || active_.front().local == nullptr) return std::nullopt;
  const Active& front = active_.front();
  const Collective& local = *front.local->collective;
  return LocalPosition{static_cast<std::uint64_t>(front.phase), local.sequence(), local.tickets_done()};
}

std::uint64_t StepQueue::mark() const {
  const HierarchicalOperation* const operation = oldest();
  if (operation == nullptr) return 0;
  const LocalPosition local = local_position().value_or(LocalPosition());
  const std::uint64_t exchanged = active_.empty() ? 0 : active_.front().step->messages().progress().first;
  std::uint64_t mark = 0;
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  for (const std::uint64_t part :
       {operation->sequence, std::uint64_t{operation->bytes_done}, exchanged, local[0], local[1], local[2]})
    mark = (mark ^ part) * kOdd;
  return mark;
}

}  // namespace lockstep::comm
