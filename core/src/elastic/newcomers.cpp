// How processes take the places of dead ranks: who waits, who is missing, and how all meet.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "elastic_parts.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/reconfigure.h"

namespace lockstep {
namespace {

// All members must come at once, because all have just been asked.
constexpr auto kMeetingTime = std::chrono::seconds(10);
// How often rank 0 looks up from the store while it waits: another rank may have died.
constexpr auto kLookUpEvery = std::chrono::milliseconds(500);

using elastic_detail::Invitation;
using elastic_detail::Waiting;

// Not 0.
std::int64_t fresh_uuid() {
  std::uint64_t random = 0;
  if (const Status drawn = fill_random(std::as_writable_bytes(std::span(&random, 1))); !drawn.ok())
    throw_status(drawn, "ElasticTraining");
  return static_cast<std::int64_t>(random >> 1) | 1;
}

struct Seat {
  std::int64_t place = 0;
  std::string handle;
};

// The members by place: the ranks that live, and newcomers in the places that nobody has.
std::vector<Seat> seats(std::vector<Seat> living, const std::vector<Waiting>& newcomers, std::int64_t full_size) {
  std::vector<Seat> all = living;
  auto next = newcomers.begin();
  for (std::int64_t place = 0; place < full_size && next != newcomers.end(); ++place) {
    const bool taken = std::any_of(living.begin(), living.end(), [&](const Seat& one) { return one.place == place; });
    if (!taken) all.push_back({place, (next++)->handle});
  }
  std::sort(all.begin(), all.end(), [](const Seat& a, const Seat& b) { return a.place < b.place; });
  return all;
}

}  // namespace

// Whether the world was formed with all of them. False: one is of another build; all is as before.
bool ElasticTraining::meet(const std::vector<std::string>& handles, std::int64_t uuid) const {
  try {
    reconfigure({.handles = handles, .uuid = uuid, .timeout = kMeetingTime});
  } catch (const ArgumentError& error) {
    if (get_rank() == 0)
      log::warning(fmt::format("ElasticTraining: a newcomer is refused: {}", error.what_without_backtrace()));
    return false;
  } catch (const c10::Error& error) {  // it has died, or does not come
    throw BackendError(ErrorCode::kPeerFailed,
                       fmt::format("ElasticTraining: newcomers did not join: {}", error.what_without_backtrace()));
  }
  return true;
}

// On rank 0. Without the store nobody can join; the training goes on.
void ElasticTraining::ask_store(const std::function<void(elastic_detail::WaitingRoom& room)>& ask) {
  if (newcomers_->store_failed) return;
  try {
    ask(newcomers_->room);
  } catch (const c10::Error& error) {
    newcomers_->store_failed = true;
    log::warning(fmt::format("{}. Nobody can join the training any more", error.what_without_backtrace()));
  }
}

// Collective over the world. Those that wait, at most `most`, as they are at the end of the time, or as soon as there
// are as many.
std::vector<Waiting> ElasticTraining::find_newcomers(std::size_t most, Deadline until) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (bool is_over = false; !is_over;) {
    if (get_rank() == 0) {
      found.clear();
      ask_store([&](elastic_detail::WaitingRoom& room) {
        for (Waiting& one : room.waiting(most, earlier(until, Deadline::after(kLookUpEvery)), description()))
          found.emplace_back(one.number, std::move(one.handle));
      });
      is_over = found.size() == most || until.expired() || newcomers_->store_failed;
    }
    auto told = std::pair(is_over, found);
    broadcast_object(told, 0);
    std::tie(is_over, found) = told;
  }
  std::vector<Waiting> waiting;
  for (auto& [number, handle] : found) waiting.push_back({number, std::move(handle)});
  return waiting;
}

// Collective over the world. Whether newcomers have taken free places.
bool ElasticTraining::admit(std::chrono::milliseconds timeout) {
  if (newcomers_ == nullptr || newcomers_->full_size <= get_world_size()) return false;
  const Deadline until = Deadline::after(timeout);
  while (true) {
    const auto missing = static_cast<std::size_t>(newcomers_->full_size - get_world_size());
    const std::vector<Waiting> waiting = find_newcomers(newcomers_->one_by_one ? 1 : missing, until);
    if (waiting.empty()) return false;
    const Invitation invitation = invite(waiting);
    if (invitation.uuid == 0) return false;
    newcomers_->are_joining = true;
    if (meet(invitation.handles, invitation.uuid)) break;
    newcomers_->are_joining = false;
    newcomers_->one_by_one = true;
  }
  world_size_ = get_world_size();
  caught_up_ = false;
  return true;
}

// Collective. The invitation has no uuid if the store has failed.
Invitation ElasticTraining::invite(const std::vector<Waiting>& waiting) {
  std::vector<Seat> living;
  for (auto& [place, handle] : all_gather_object(std::pair(newcomers_->place, get_reconfigure_handle())))
    living.push_back({place, std::move(handle)});
  Invitation invitation{.full_size = newcomers_->full_size,
                        .micro_batches = micro_batches_,
                        .newcomers = static_cast<std::int64_t>(waiting.size())};
  for (Seat& seat : seats(std::move(living), waiting, newcomers_->full_size)) {
    invitation.handles.push_back(std::move(seat.handle));
    invitation.places.push_back(seat.place);
  }
  if (get_rank() == 0) {
    ask_store([&](elastic_detail::WaitingRoom& room) {
      invitation.uuid = fresh_uuid();
      for (const Waiting& one : waiting) room.invite(one.number, invitation);
    });
    if (newcomers_->store_failed) invitation.uuid = 0;
  }
  broadcast_object(invitation.uuid, 0);
  return invitation;
}

// Before the first world of the training. The store of an earlier training sends newcomers away.
void ElasticTraining::require_fresh_store() {
  if (newcomers_ == nullptr) return;
  bool closed = false;
  ask_store([&](elastic_detail::WaitingRoom& room) { closed = room.is_closed(); });
  if (!closed) return;
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      "ElasticTraining: ElasticOptions::newcomers is the store of a training that is over: give each "
                      "training a store of its own, for example another file or a PrefixStore");
}

bool ElasticTraining::join() {
  TORCH_CHECK_VALUE(newcomers_ != nullptr, "ElasticTraining: join() needs ElasticOptions::newcomers");
  const std::string own = get_reconfigure_handle();
  while (true) {
    const auto invitation = newcomers_->room.wait(own, description());
    if (!invitation) return false;
    const auto rank = std::find(invitation->handles.begin(), invitation->handles.end(), own);
    newcomers_->full_size = invitation->full_size;
    newcomers_->place = invitation->places.at(static_cast<std::size_t>(rank - invitation->handles.begin()));
    newcomers_->are_joining = true;
    micro_batches_ = static_cast<int>(invitation->micro_batches);
    done_ = -1;
    whole_ = caught_up_ = false;
    try {
      reconfigure({.handles = invitation->handles, .uuid = invitation->uuid, .timeout = kMeetingTime});
      return true;
    } catch (const ArgumentError&) {
      if (invitation->newcomers == 1) throw;  // else it may be for another one: the next time each is invited alone
    } catch (const c10::Error& error) {       // somebody has died meanwhile
      log::info(fmt::format("ElasticTraining: waits to join again: {}", error.what_without_backtrace()));
    }
  }
}

}  // namespace lockstep
