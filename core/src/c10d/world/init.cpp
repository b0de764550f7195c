// Making and leaving the world.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>

#include "c10d/backend/group_errors.h"
#include "c10d/world/communicator_meeting.h"
#include "c10d/world/engine_of.h"
#include "c10d/world/world_state.h"
#include "engine/core/patience.h"
#include "launch/job/first_failure.h"
#include "launch/world/slurm.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/launch/world.h"
#include "store/membership/reconfigure_handle.h"
#include "store/membership/refuse_rendezvous.h"
#include "store/membership/same_choice.h"

namespace lockstep {
namespace {

// How long the rank that serves the store waits for the others when it leaves in order.
constexpr std::chrono::milliseconds kPartingTime{5000};
// The same after an error, where its timeout is nearer than that.
constexpr std::chrono::milliseconds kLeastPartingTime{1000};

[[noreturn]] void reject(ErrorCode code, const std::string& text) {
  throw ArgumentError(code, "init_process_group: " + text);
}

struct Place {
  comm::RendezvousOptions rendezvous;
  std::optional<launch::World> world = {};  // none: the local rank is not known
  std::string step = {};  // of Slurm: no rank joins the wrong world if another step's store is at this port
};

// Rank, size and address, from the environment.
Place find_place(const InitOptions& options) {
  launch::WorldArguments arguments;
  if (options.rank >= 0) arguments.rank = options.rank;
  if (options.world_size >= 0) arguments.world_size = options.world_size;
  Result<launch::World> world = launch::resolve_world(arguments);
  if (!world.ok()) throw_status(world.status(), "init_process_group");
  Place place;
  place.rendezvous.init_method = "env://";
  place.rendezvous.rank = world->rank;
  place.rendezvous.world_size = world->world_size;
  place.rendezvous.job_key = world->job_key;
  place.rendezvous.master_addr = world->master_addr;
  // MASTER_PORT is not handed on: the rendezvous reads it, and knows when torchrun's agent listens there.
  const bool found_out = world->master_port > 0 && !place.rendezvous.environment.has("MASTER_PORT");
  if (found_out) place.rendezvous.master_port = world->master_port;
  if (world->source_kind == launch::WorldSource::kSlurm)
    place.step = launch::slurm_step_name(Environment::of_process());
  if (world->local_rank_known) place.world = world.value();
  return place;
}

Place make_place(const InitOptions& options) {
  Place place;
  if (options.init_method.empty() && options.store == nullptr) {
    place = find_place(options);
  } else {
    place.rendezvous.init_method = options.init_method;
    place.rendezvous.rank = options.rank;
    place.rendezvous.world_size = options.world_size;
  }
  place.rendezvous.timeout = options.timeout;
  if (!options.group_name.empty()) place.rendezvous.group_name = options.group_name;
  if (!place.step.empty()) place.rendezvous.group_name.insert(0, place.step + "/");
  return place;
}

comm::Rendezvous meet(const InitOptions& options, const comm::RendezvousOptions& rendezvous) {
  if (options.store != nullptr) {
    if (!options.init_method.empty()) {
      reject(ErrorCode::kInvalidArgument,
             fmt::format("give a store or an init_method ('{}'), not both", options.init_method));
    }
    if (options.rank < 0 || options.world_size < 1) {
      reject(ErrorCode::kInvalidArgument,
             fmt::format("a store needs rank and world_size with it, found rank {} and world_size {}", options.rank,
                         options.world_size));
    }
  }
  auto met = options.store == nullptr ? comm::rendezvous(rendezvous) : comm::rendezvous(rendezvous, options.store);
  if (!met.ok()) throw_status(met.status(), "init_process_group");
  return std::move(met).value();
}

// For a rank whose number is not from the environment. Returns the world of the environment if it has the same rank and
// world size.
std::optional<launch::World> world_in_environment(int rank, int world_size) {
  launch::WorldArguments arguments;
  arguments.rank = rank;
  arguments.world_size = world_size;
  const Result<launch::World> world = launch::resolve_world(arguments);
  return world.ok() && world.value().local_rank_known ? std::optional(world.value()) : std::nullopt;
}

// How long this process waits before it warns.
std::chrono::milliseconds patience_of(const InitOptions& options) {
  if (!options.patience) {
    const auto found = comm::patience_in_environment();
    if (!found.ok()) reject(found.status().code(), found.status().message());
    return found.value();
  }
  if (options.patience->count() < 0) {
    reject(ErrorCode::kInvalidArgument,
           fmt::format("expected a patience of zero (no warnings) or more, found {} ms", options.patience->count()));
  }
  return *options.patience;
}

// What is wrong here alone.
BackendChoice check_call(std::string_view backend, const InitOptions& options) {
  if (is_initialized()) {
    reject(ErrorCode::kInvalidArgument, "there is a process group already; destroy_process_group() leaves it");
  }
  const BackendChoice backends = parse_backends(backend, "init_process_group");
  check_backend_options(backends, options.backend_options, "init_process_group");
  check_group_name(options.group_name, "init_process_group");
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    reject(ErrorCode::kInvalidArgument,
           fmt::format("the timeout must be positive, found {} ms", options.timeout.count()));
  }
  if (options.communicator != nullptr) check_communicator_options(options, backends);
  comm::Communicator::set_patience(patience_of(options));
  return backends;
}

// This rank's call is wrong: tells the ranks that wait for it, if they can be reached.
void refuse_to_join(const InitOptions& options, const std::exception& error) {
  try {
    if (options.communicator != nullptr) {
      const auto timeout = std::max(options.timeout, kLeastPartingTime);
      return refuse_communicator(*options.communicator, plain_text(error), Deadline::after(timeout));
    }
    if (is_initialized()) return;  // its ranks know that there is a world
    comm::refuse_rendezvous(make_place(options).rendezvous, options.store, plain_text(error));
  } catch (const std::exception&) {  // the environment is wrong too
  }
}

// Ranks with different backends would wait for one another, each in its own.
void check_same_backends(comm::Rendezvous& met, const comm::Choice& choice, Deadline deadline) {
  if (met.world_size == 1) return;
  const Status same =
      comm::check_same_choice(*met.store, "backends/world", comm::Roster(), met.rank, met.world_size, choice, deadline);
  if (same.ok()) return;
  // This rank may host the store from which the others read the same.
  static_cast<void>(met.release(std::clamp(deadline.remaining_ms(), kLeastPartingTime, kPartingTime)));
  throw_status(same, fmt::format("init_process_group: rank {}", met.rank));
}

// Every rank learns where all ranks can be met later.
void exchange_handles() {
  WorldState& world = WorldState::of_process();
  try {
    const auto place = world.meeting_place("init_process_group");
    world.set_handles(all_gather_object(place->handle(get_rank())));
  } catch (const std::exception& error) {
    abort_process_group(fmt::format("rank {} cannot prepare for reconfigure: {}", get_rank(), plain_text(error)));
    world.close(std::chrono::milliseconds(0));
    throw;
  }
  // After a death each machine would count the ranks of the others as dead, and go on alone. All ranks see the same.
  const Status reachable = comm::check_reachable(world.handles());
  if (reachable.ok()) return;
  world.close(kPartingTime);
  throw_status(reachable, "init_process_group");
}

}  // namespace

void init_process_group(std::string_view backend, const InitOptions& options) {
  BackendChoice backends;
  try {
    backends = check_call(backend, options);
  } catch (const std::exception& error) {
    refuse_to_join(options, error);
    throw;
  }
  const Deadline deadline = Deadline::after(options.timeout);
  Place place;
  comm::Rendezvous met;
  if (options.communicator != nullptr) {
    const std::string name = options.group_name.empty() ? place.rendezvous.group_name : options.group_name;
    auto meeting = meet_through(*options.communicator, name, deadline);
    met = std::move(meeting.met);
    place.rendezvous.job_key = std::move(meeting.job_key);
  } else {
    place = make_place(options);
    met = meet(options, place.rendezvous);
  }
  check_same_backends(
      met, {text_of(backends), backend.empty(), "backends", options.enable_reconfigure, "enable_reconfigure"},
      deadline);
  try {
    std::optional<launch::World> here = place.world;
    // The environment may tell of other ranks, which have the same numbers by chance.
    if (!here && options.communicator == nullptr) here = world_in_environment(met.rank, met.world_size);
    open_world({backends, options.group_name.empty() ? "world" : options.group_name, options.backend_options,
                options.timeout, place.rendezvous.job_key, std::nullopt, options.communicator.get()},
               met, here, deadline);
  } catch (...) {
    static_cast<void>(met.release(std::chrono::milliseconds(0)));
    throw;
  }
  if (options.enable_reconfigure) exchange_handles();
}

void destroy_process_group(const ProcessGroup& group) {
  WorldState& world = WorldState::of_process();
  if (!world.is_open()) return;
  if (group != nullptr && group != world.handle()) {
    world.remove(group);
    return;
  }
  world.close(world.has_failed() ? std::chrono::milliseconds(0) : kPartingTime);
}

void abort_process_group(const std::string& reason, const ProcessGroup& group) {
  const ProcessGroup target = group != nullptr ? group : default_group();
  std::vector<ProcessGroup> all = WorldState::of_process().own_groups(target);
  all.push_back(target);
  for (const ProcessGroup& one : all) {
    for (const auto& device : one->getDeviceTypes()) {
      if (auto* const engine = engine_of(one, device.type())) {
        engine->abort(reason);
      } else {
        one->getBackend(device.type())->abort();
      }
    }
  }
}

bool is_initialized() {
  return WorldState::of_process().is_open();
}
int get_local_rank() {
  return WorldState::of_process().facts("get_local_rank").place.local_rank;
}
at::Device local_device() {
  const WorldState& world = WorldState::of_process();
  return world.is_open() ? world.facts("local_device").device : at::Device(at::kCPU);
}

ProcessGroupGuard::ProcessGroupGuard(std::string_view backend, const InitOptions& options)
    : exceptions_at_start_(std::uncaught_exceptions()) {
  init_process_group(backend, options);
  rank_ = get_rank();
  world_size_ = get_world_size();
}

ProcessGroupGuard::~ProcessGroupGuard() {
  if (!origin_.is_this_process()) return;
  try {
    WorldState& world = WorldState::of_process();
    if (std::uncaught_exceptions() > exceptions_at_start_ && world.is_open()) {
      // An exception that follows from another rank's failure is not the first failure. If the claim fails, the
      // launcher's report may name another rank; nothing else depends on it.
      if (!world.has_failed()) static_cast<void>(launch::claim_first_failure(rank_));
      const int now = world.handle()->getRank();  // reconfigure() may have given another number
      const std::string who =
          now == rank_ ? fmt::format("rank {}", now) : fmt::format("rank {} (rank {} at the start)", now, rank_);
      abort_process_group(fmt::format("{} left by an exception of its own; its output says which", who),
                          world.handle());
    }
    destroy_process_group();
  } catch (const std::exception& error) {
    log::error(fmt::format("leaving the process group: {}", error.what()));
  }
}

}  // namespace lockstep
