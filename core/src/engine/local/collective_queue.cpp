#include "collective_queue.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::comm {
namespace {

// When all ranks have posted, a rank does not take the others' tickets at once: they are about to begin them.
constexpr int kSpinsBeforeHelp = 30;

}  // namespace

bool CollectiveQueue::slot_is_free() {
  const std::uint64_t next = posted_ + 1;
  if (next <= admitted_until_) return true;
  std::uint64_t completed = next;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    completed = std::min(completed, memory_.state(rank).completed.load(std::memory_order_acquire));
  }
  admitted_until_ = completed + kRing;
  return next <= admitted_until_;
}

Status CollectiveQueue::add(Collective& collective, std::shared_ptr<LocalOperation> operation) {
  if (!admits()) {
    queue_.push_back({&collective, std::move(operation)});
    return {};
  }
  LOCKSTEP_RETURN_IF_ERROR(post(collective));
  if (operation != nullptr) started_.push_back(std::move(operation));
  return {};
}

Status CollectiveQueue::post(Collective& collective) {
  ++posted_;
  pending_.push_back(&collective);
  Status posted = collective.post();
  if (!posted.ok()) {
    posted = posted.with_context(
        fmt::format("{} cannot take part in {}", memory_.roster().name(memory_.rank()), collective.describe()));
    waiting_.abort(posted.code(), posted.message());
    std::erase(pending_, &collective);
  }
  return posted;
}

void CollectiveQueue::post_queued() {
  while (!queue_.empty() && !waiting_.aborted() && slot_is_free()) {
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    if (next.operation != nullptr) started_.push_back(std::move(next.operation));
    (void)post(*next.collective);  // an error breaks the group
  }
}

void CollectiveQueue::remove(Collective& collective) {
  std::erase_if(queue_, [&](const Queued& queued) { return queued.collective == &collective; });
  std::erase(pending_, &collective);
}

void CollectiveQueue::progress(bool help) {
  for (Collective* collective : pending_) {
    if (!collective->over() && !waiting_.aborted()) collective->progress(help, scratch_);
  }
  remove_finished();
  if (!queue_.empty()) post_queued();
}

bool CollectiveQueue::finish_at_once(Collective& collective) {
  if (pending_.size() != 1 || !collective.posted()) return false;
  for (int spin = 0; spin < waiting_.spins() && !waiting_.aborted(); ++spin) {
    if (collective.progress(/*help=*/spin >= kSpinsBeforeHelp, scratch_)) {
      remove_finished();
      return true;
    }
    if (collective.wants_stream()) return false;
    waiting_.relax();
  }
  return false;
}

void CollectiveQueue::remove_finished() {
  std::erase_if(pending_, [](const Collective* collective) { return collective->over(); });
  publish_completed();
  if (!started_.empty()) end_started();
}

void CollectiveQueue::end_started() {
  std::erase_if(started_, [](const std::shared_ptr<LocalOperation>& operation) {
    if (!operation->collective->over()) return false;
    operation->finish(operation->collective->status());
    return true;
  });
}

bool CollectiveQueue::has_met() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const Collective* collective) { return collective->missing() < 0; });
}

std::vector<std::shared_ptr<LocalOperation>> CollectiveQueue::give_up_started() {
  std::vector<std::shared_ptr<LocalOperation>> operations = std::exchange(started_, {});
  for (const Queued& queued : queue_) {
    if (is_started(queued)) operations.push_back(queued.operation);
  }
  return operations;
}

}  // namespace lockstep::comm
