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
#include "lockstep/launch/newcomer.h"

namespace lockstep {
namespace {

// All members must come at once, because all have just been asked.
constexpr auto kMeetingTime = std::chrono::seconds(10);
// How often rank 0 looks up from the store while it waits: another rank may have died.
constexpr auto kLookUpEvery = std::chrono::milliseconds(500);

// How long ranks wait for a newcomer of the launcher: it loads its program and its samples.
constexpr std::chrono::seconds kLaunchersTime{60};

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
std::vector<Seat> seats(std::vector<Seat> all, const std::vector<Waiting>& newcomers, std::int64_t full_size) {
  const auto is_free = [&](std::int64_t place) {
    return std::none_of(all.begin(), all.end(), [&](const Seat& one) { return one.place == place; });
  };
  std::vector<Waiting> others;
  for (const Waiting& one : newcomers) {
    const bool gets_its_wish = one.wish >= 0 && one.wish < full_size && is_free(one.wish);
    if (gets_its_wish) all.push_back({one.wish, one.handle});
    if (!gets_its_wish) others.push_back(one);
  }
  auto next = others.begin();
  for (std::int64_t place = 0; place < full_size && next != others.end(); ++place) {
    if (is_free(place)) all.push_back({place, (next++)->handle});
  }
  std::sort(all.begin(), all.end(), [](const Seat& a, const Seat& b) { return a.place < b.place; });
  return all;
}

}  // namespace

// The program's, else the launcher's.
void ElasticTraining::find_room() {
  const bool of_launcher = options_.newcomers == nullptr;
  if (of_launcher) {
    auto store = launch::newcomers_store();
    if (!store.ok()) throw_status(store.status(), "ElasticTraining: the launcher's store");
    options_.newcomers = std::move(store).value();
  }
  if (options_.newcomer_timeout < std::chrono::milliseconds(0))
    options_.newcomer_timeout = of_launcher && options_.newcomers != nullptr ? kLaunchersTime : std::chrono::seconds(0);
  if (options_.newcomers == nullptr) return;
  newcomers_ = std::make_unique<Newcomers>(options_.newcomers);
  newcomers_->of_launcher = of_launcher;
  if (!of_launcher) return;
  const auto replaced = launch::awaited_rank();
  if (!replaced.ok()) throw_status(replaced.status(), "ElasticTraining");
  newcomers_->replaced = replaced.value();
}

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

// When a run begins. After a death in the middle of a run the ranks have waited already.
std::chrono::milliseconds ElasticTraining::time_for_newcomers() const {
  const bool waits = newcomers_ != nullptr && newcomers_->missing() > newcomers_->given_up;
  return waits ? options_.newcomer_timeout : std::chrono::milliseconds(0);
}

// For how many free places the launcher has started a newcomer, or may still start one.
std::size_t ElasticTraining::awaited(elastic_detail::WaitingRoom& room) const {
  const std::vector<std::int64_t> free = newcomers_->free_places();
  return static_cast<std::size_t>(std::count_if(
      free.begin(), free.end(), [&](std::int64_t place) { return !room.nobody_comes(static_cast<int>(place)); }));
}

// Collective over the world. Those that wait, at most `most`, as they are at the end of the time, or as soon as there
// are as many.
std::vector<Waiting> ElasticTraining::find_newcomers(std::size_t most, Deadline until) {
  std::vector<std::tuple<std::int64_t, std::string, std::int64_t>> found;
  for (bool is_over = false; !is_over;) {
    if (get_rank() == 0) {
      found.clear();
      ask_store([&](elastic_detail::WaitingRoom& room) {
        if (newcomers_->description.empty()) newcomers_->description = description();
        const Deadline look_up = earlier(until, Deadline::after(kLookUpEvery));
        for (Waiting& one : room.waiting(most, look_up, newcomers_->description))
          found.emplace_back(one.number, std::move(one.handle), one.wish);
        is_over = found.size() == most || until.expired() || (newcomers_->of_launcher && found.size() >= awaited(room));
      });
      is_over = is_over || newcomers_->store_failed;
    }
    auto told = std::pair(is_over, found);
    broadcast_object(told, 0);
    std::tie(is_over, found) = told;
  }
  std::vector<Waiting> waiting;
  for (auto& [number, handle, wish] : found) waiting.push_back({number, std::move(handle), wish});
  return waiting;
}

// Collective over the world. Whether newcomers have taken free places. The time is that of rank 0.
bool ElasticTraining::admit(std::chrono::milliseconds timeout) {
  if (newcomers_ == nullptr || newcomers_->missing() == 0) return false;
  const Deadline until = Deadline::after(timeout);
  while (true) {
    const auto missing = static_cast<std::size_t>(newcomers_->missing());
    const std::vector<Waiting> waiting = find_newcomers(newcomers_->one_by_one ? 1 : missing, until);
    newcomers_->given_up = newcomers_->missing();
    if (waiting.empty()) return false;
    const Invitation invitation = invite(waiting);
    if (invitation.uuid == 0) return false;
    newcomers_->are_joining = true;
    if (meet(invitation.handles, invitation.uuid)) break;
    newcomers_->are_joining = false;
    newcomers_->one_by_one = true;
  }
  world_size_ = get_world_size();
  newcomers_->given_up = newcomers_->missing();
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

// Before the first world of the training.
void ElasticTraining::look_at_store() {
  if (newcomers_ == nullptr) return;
  ask_store([&](elastic_detail::WaitingRoom& room) { newcomers_->closed = room.is_closed(); });
  if (newcomers_->replaced) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("ElasticTraining: the launcher has started this process to take the place of rank "
                                    "{}: call join() before run(), and leave if it returns false",
                                    *newcomers_->replaced));
  }
}

// The store of an earlier training sends newcomers away. On all ranks alike.
void ElasticTraining::require_fresh_store(const Survey& all) {
  if (newcomers_ == nullptr || !all.closed) return;
  if (newcomers_->of_launcher) {
    log::info("ElasticTraining: an earlier training of this job is over, so the launcher's newcomers do not join");
    newcomers_.reset();
    return;
  }
  end_alike();
  throw ArgumentError(ErrorCode::kInvalidArgument,
                      "ElasticTraining: ElasticOptions::newcomers is the store of a training that is over: give each "
                      "training a store of its own, for example another file or a PrefixStore");
}

// That this newcomer has joined, if it has and the launcher does not know.
void ElasticTraining::tell_launcher() {
  if (newcomers_ == nullptr || !newcomers_->untold) return;
  if (newcomers_->room.tell_joined(*newcomers_->untold)) newcomers_->untold.reset();
}

bool ElasticTraining::join() {
  if (newcomers_ == nullptr || (newcomers_->of_launcher && !newcomers_->replaced)) return true;
  const std::string own = get_reconfigure_handle();
  while (true) {
    const auto invitation = newcomers_->room.wait(own, description(), newcomers_->replaced.value_or(-1));
    if (!invitation) return false;
    const auto rank = std::find(invitation->handles.begin(), invitation->handles.end(), own);
    newcomers_->full_size = invitation->full_size;
    newcomers_->place = invitation->places.at(static_cast<std::size_t>(rank - invitation->handles.begin()));
    newcomers_->given_up = invitation->full_size - static_cast<std::int64_t>(invitation->handles.size());
    newcomers_->are_joining = true;
    micro_batches_ = static_cast<int>(invitation->micro_batches);
    done_ = -1;
    whole_ = caught_up_ = false;
    try {
      reconfigure({.handles = invitation->handles, .uuid = invitation->uuid, .timeout = kMeetingTime});
      newcomers_->untold = newcomers_->replaced;
      tell_launcher();
      return true;
    } catch (const ArgumentError&) {
      if (invitation->newcomers == 1) throw;  // else it may be for another one: the next time each is invited alone
    } catch (const c10::Error& error) {       // somebody has died meanwhile
      log::info(fmt::format("ElasticTraining: waits to join again: {}", error.what_without_backtrace()));
    }
  }
}

}  // namespace lockstep
