// Forming the world, or a group, anew.
#include "lockstep/c10d/reconfigure.h"

#include <fmt/format.h>

#include <atomic>
#include <string>
#include <utility>

#include "c10d/world/open_meeting_place.h"
#include "c10d/world/target.h"
#include "c10d/world/world_state.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

constexpr const char* kCaller = "reconfigure";

[[noreturn]] void refuse(ErrorCode code, const std::string& text) {
  throw ArgumentError(code, fmt::format("{}: {}", kCaller, text));
}

// The handles of a new world, whose ranks are the positions.
std::vector<std::string> renumbered(const std::vector<std::string>& handles) {
  std::vector<std::string> texts;
  for (const std::string& text : handles) {
    auto handle = comm::parse_reconfigure_handle(text);
    if (!handle.ok()) throw_status(handle.status(), kCaller);
    handle->rank = static_cast<int>(texts.size());
    texts.push_back(to_text(handle.value()));
  }
  return texts;
}

// One call, from its options to the new group.
class Reconfiguration {
 public:
  Reconfiguration(const ReconfigureOptions& options, const ProcessGroup& group)
      : facts_(world_.facts_to_reconfigure(kCaller)),
        group_(group != nullptr ? group : world_.handle()),
        is_world_(group_ == world_.handle()),
        old_(world_.members(group_)),
        place_(world_.meeting_place(kCaller)) {
    check_timeout(options.timeout, kCaller);
    const auto timeout = options.timeout > std::chrono::milliseconds::zero() ? options.timeout : facts_.timeout;
    call_.group = is_world_ ? "world" : "group " + old_.name;
    call_.uuid = options.uuid;
    call_.handles = options.handles;
    call_.deadline = Deadline::after(timeout);
    for (const auto& entry : facts_.backends.entries) {
      if (entry.backend == BackendName::kMpi)
        refuse(ErrorCode::kUnsupported, "MPI's processes cannot form a world anew; start the job again");
    }
    if (!is_world_) {
      static_cast<void>(world_.facts(kCaller));  // there must be one
      if (world_.is_of_earlier_world(group_)) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("group '{}' is of a world that was formed anew since; make it again in the present one",
                           old_.name));
      }
    }
    if (!group_->hasBackends()) refuse(ErrorCode::kInvalidArgument, "this rank is no member of the group");
    if (call_.handles.empty()) {
      find_known();
    } else if (const Status wrong = place_->check(call_); !wrong.ok()) {
      throw_status(wrong, kCaller);
    }
    if (!is_world_) static_cast<void>(world_ranks_of(call_.handles));
  }

  ProcessGroup run() {
    const Status why =
        replaced_by(old_.name, call_.handles.empty() ? "among the survivors" : fmt::format("uuid {}", call_.uuid));
    if (is_world_) {
      world_.leave_for(why);
    } else {
      world_.remove(group_, why);
    }
    while (true) {
      try {
        return attempt();
      } catch (const std::exception& error) {
        // A member died meanwhile, perhaps the one that serves the store, or begins again because it has seen a death.
        const ErrorCode code = error_code(error);
        // What is unavailable to the same members twice is no member, but memory or the like.
        const bool lacks = code == ErrorCode::kUnavailable && found_ == lacked_by_;
        if (code == ErrorCode::kUnavailable) lacked_by_ = found_;
        const bool again = code == ErrorCode::kPeerFailed || code == ErrorCode::kAborted ||
                           (code == ErrorCode::kUnavailable && !lacks);
        if (known_.empty() || !again || gave_up_ || call_.deadline.expired()) {
          const std::string reason = fmt::format(
              "this process is in no world, because {}; call reconfigure() again, or destroy_process_group()",
              plain_text(error));
          if (is_world_) world_.leave_for({ErrorCode::kAborted, reason});
          throw;
        }
        log::info(fmt::format("{}: once more, because {}", kCaller, plain_text(error)));
      }
    }
  }

 private:
  void find_known() {
    const std::vector<std::string> all = world_.handles();
    if (all.empty()) {
      refuse(ErrorCode::kInvalidArgument,
             "the ranks do not know where they can be met; give InitOptions::enable_reconfigure to init_process_group, "
             "or the handles of all members");
    }
    for (const int rank : old_.ranks) known_.push_back(all[rank]);
  }

  // The rank in the present world of the process with this handle. The handle may be older than the world, and have
  // another rank.
  int world_rank_of(const comm::ReconfigureHandle& member) const {
    const std::vector<std::string> all = world_.handles();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto one = comm::parse_reconfigure_handle(all[rank]);
      if (one.ok() && one.value().id == member.id) return static_cast<int>(rank);
    }
    // Where the ranks have told one another no handles, this is the first world.
    const std::vector<comm::Member>& ranks = *facts_.members;
    if (all.empty() && member.rank >= 0 && member.rank < static_cast<int>(ranks.size()) &&
        ranks[member.rank].pid == member.pid && ranks[member.rank].host == member.host) {
      return member.rank;
    }
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("{} is not of the present world; every member of a group must be", describe(member)));
  }

  std::vector<int> world_ranks_of(const std::vector<std::string>& handles) const {
    std::vector<int> ranks;
    for (const std::string& text : handles) {
      auto handle = comm::parse_reconfigure_handle(text);
      if (!handle.ok()) throw_status(handle.status(), kCaller);
      ranks.push_back(world_rank_of(handle.value()));
    }
    return ranks;
  }

  comm::Reunion meet() {
    comm::ReconfigureCall call = call_;
    if (!known_.empty()) {
      auto found = place_->find_survivors(call_.group, known_, call_.deadline);
      gave_up_ = !found.ok();
      if (found.status().code() == ErrorCode::kPeerFailed) {  // another call will not help, as it does after a death
        throw_status({ErrorCode::kUnavailable, found.status().message()}, kCaller);
      }
      if (!found.ok()) throw_status(found.status(), kCaller);
      call = std::move(found).value();
      found_ = call.handles.size();
    }
    auto met = place_->meet(call);
    if (!met.ok()) throw_status(met.status(), kCaller);
    return std::move(met).value();
  }

  ProcessGroup attempt() {
    const comm::Reunion met = meet();
    ProcessGroup made = is_world_ ? form_world(met) : form_group(met);
    met.formed();
    return made;
  }

  ProcessGroup form_world(const comm::Reunion& met) {
    open_world({facts_.backends, "world", facts_.backend_options, facts_.timeout, facts_.job_key, met.store_rank},
               met.rendezvous, std::nullopt, call_.deadline);
    world_.set_handles(renumbered(met.handles));
    log::info(fmt::format("{}: now rank {} of {}, before rank {} of {}", kCaller, met.rendezvous.rank,
                          met.rendezvous.world_size, facts_.rank, facts_.world_size));
    return world_.default_group(kCaller);
  }

  ProcessGroup form_group(const comm::Reunion& met) {
    WorldState::Members members{met.rendezvous.rank, world_ranks_of(met.handles), old_.name};
    const auto backends =
        make_backends(parse_backends(get_backend(group_), kCaller),
                      {met.rendezvous.store, members.name, members.rank, members.ranks, met.rendezvous.members,
                       call_.deadline.remaining_ms(), facts_.place.local_rank});
    for (const DeviceBackend& one : backends) one.backend->setTimeout(facts_.timeout);
    ProcessGroup made = make_handle(members, met.rendezvous.store, backends);
    world_.add(made, std::move(members));
    return made;
  }

  WorldState& world_ = WorldState::of_process();
  const WorldState::Facts facts_;
  const ProcessGroup group_;
  const bool is_world_;
  const WorldState::Members old_;
  const std::shared_ptr<comm::MeetingPlace> place_;
  comm::ReconfigureCall call_;
  std::vector<std::string> known_;  // without handles: those of the present members
  bool gave_up_ = false;            // the survivors were not found
  std::size_t found_ = 0;           // survivors
  std::size_t lacked_by_ = 0;       // found_, when an attempt last failed with kUnavailable
};

}  // namespace

std::string get_reconfigure_handle() {
  WorldState& world = WorldState::of_process();
  const auto place = world.meeting_place("get_reconfigure_handle");
  return place->handle(world.facts_to_reconfigure("get_reconfigure_handle").rank);
}

ProcessGroup reconfigure(const ReconfigureOptions& options, const ProcessGroup& group) {
  static constinit std::atomic<bool> under_way = false;
  const OneCall one(under_way, kCaller);
  return Reconfiguration(options, group).run();
}

}  // namespace lockstep
