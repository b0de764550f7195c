#include "lockstep/launch/world.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/arithmetic.h"
#include "base/number_text.h"
#include "launch/standby/hook.h"
#include "launch/world/mpirun.h"
#include "launch/world/slurm.h"
#include "lockstep/base/mutex.h"

namespace lockstep::launch {
namespace {

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

constexpr std::string_view kRemedy =
    "Start the program with `lockstep run`, srun or mpirun, or set all of its variables";

const char* text_of(WorldSource source) {
  switch (source) {
    case WorldSource::kNotDistributed: return "not distributed";
    case WorldSource::kArguments: return "arguments";
    case WorldSource::kLauncher: return "launcher variables";
    case WorldSource::kSlurm: return "Slurm";
    case WorldSource::kOpenMpi: return "Open MPI";
    case WorldSource::kPmi: return "PMI";
    case WorldSource::kProcessGroup: return "process group";
  }
  return "unknown";
}

// What one source (the launcher, Slurm, mpirun) says of this process; nullopt where it says nothing.
struct Placement {
  WorldSource source = WorldSource::kNotDistributed;
  std::string rank_name = {}, size_name = {};  // the variables, for messages
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = {}, local_world_size = {}, node_rank = {}, num_nodes = {};
  std::string first_host = {};  // the machine of rank 0, if known; with mpirun its own machine
  std::string job_id = {};      // for the port; empty if the source is not a scheduler
};

Result<std::optional<int>> number(const Environment& environment, std::string_view name) {
  const auto text = environment.get(name);
  if (!text) return std::optional<int>();
  const std::optional<int> value = number_from_text<int>(*text);
  if (value && *value >= 0) return value;
  return invalid(fmt::format("{}: expected a whole number from 0, found '{}'", name, *text));
}

Result<int> required(const Environment& environment, std::string_view name, std::string_view because) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto value, number(environment, name));
  if (value) return *value;
  return invalid(fmt::format("{} is not set, although {}={} is. {}", name, because,
                             environment.get(because).value_or(""), kRemedy));
}

// Reads two variables of which both or neither must be set.
Status pair(const Environment& environment, const std::string& first_name, const std::string& second_name,
            std::optional<int>& first, std::optional<int>& second) {
  LOCKSTEP_ASSIGN_OR_RETURN(first, number(environment, first_name));
  LOCKSTEP_ASSIGN_OR_RETURN(second, number(environment, second_name));
  if (first.has_value() == second.has_value()) return {};
  const std::string& there = first ? first_name : second_name;
  return required(environment, first ? second_name : first_name, there).status();
}

Result<std::optional<Placement>> from_launcher(const Environment& environment) {
  Placement placement{.source = WorldSource::kLauncher, .rank_name = "RANK", .size_name = "WORLD_SIZE"};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto rank, number(environment, "RANK"));
  if (!rank) return std::optional<Placement>();
  placement.rank = *rank;
  LOCKSTEP_ASSIGN_OR_RETURN(placement.world_size, required(environment, "WORLD_SIZE", "RANK"));
  LOCKSTEP_RETURN_IF_ERROR(
      pair(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", placement.local_rank, placement.local_world_size));
  LOCKSTEP_ASSIGN_OR_RETURN(placement.node_rank, number(environment, "GROUP_RANK"));
  LOCKSTEP_ASSIGN_OR_RETURN(placement.num_nodes, number(environment, "GROUP_WORLD_SIZE"));
  return std::optional<Placement>(std::move(placement));
}

// The step's variable if it is set, else the job's.
std::string step_or_job(const Environment& environment, const std::string& step, const std::string& job) {
  return environment.has(step) ? step : job;
}

// Nodes may have different numbers of tasks: this node's number is in SLURM_STEP_TASKS_PER_NODE.
Status read_slurm_nodes(const Environment& environment, Placement& placement) {
  const auto name = step_or_job(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const auto text = environment.get(name);
  if (!text) return {};
  const auto tasks = tasks_per_node(*text);
  if (!tasks) return invalid(fmt::format("{}: expected a list such as 2(x3),1, found '{}'", name, *text));
  const int total = std::accumulate(tasks->begin(), tasks->end(), 0);
  const int node = placement.node_rank.value_or(0);
  if (total != placement.world_size || node >= static_cast<int>(tasks->size())) {
    return invalid(fmt::format("{}='{}' contradicts {}={} and SLURM_NODEID={}: it has {} tasks on {} nodes", name,
                               *text, placement.size_name, placement.world_size, node, total, tasks->size()));
  }
  placement.local_world_size = (*tasks)[static_cast<std::size_t>(node)];
  placement.num_nodes = static_cast<int>(tasks->size());
  return {};
}

Result<std::optional<Placement>> from_slurm(const Environment& environment) {
  if (!inside_slurm_step(environment)) return std::optional<Placement>();
  Placement placement{.source = WorldSource::kSlurm, .rank_name = "SLURM_PROCID"};
  placement.size_name = step_or_job(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  LOCKSTEP_ASSIGN_OR_RETURN(placement.rank, required(environment, "SLURM_PROCID", "SLURM_STEP_ID"));
  LOCKSTEP_ASSIGN_OR_RETURN(placement.world_size, required(environment, placement.size_name, "SLURM_PROCID"));
  LOCKSTEP_ASSIGN_OR_RETURN(placement.local_rank, required(environment, "SLURM_LOCALID", "SLURM_PROCID"));
  LOCKSTEP_ASSIGN_OR_RETURN(placement.node_rank, required(environment, "SLURM_NODEID", "SLURM_PROCID"));
  const auto nodes_name = step_or_job(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES");
  LOCKSTEP_ASSIGN_OR_RETURN(placement.num_nodes, number(environment, nodes_name));
  LOCKSTEP_RETURN_IF_ERROR(read_slurm_nodes(environment, placement));
  if (!placement.local_world_size && placement.num_nodes == 1) placement.local_world_size = placement.world_size;
  if (!placement.local_world_size) {
    LOCKSTEP_RETURN_IF_ERROR(required(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID").status());
  }
  const auto list_name = step_or_job(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  if (const auto list = environment.get(list_name)) {
    const auto host = first_host(*list);
    if (!host) return invalid(fmt::format("{}: expected a list such as node[01-04], found '{}'", list_name, *list));
    placement.first_host = *host;
  }
  placement.job_id = slurm_step_name(environment);
  return std::optional<Placement>(std::move(placement));
}

struct MpiNames {
  WorldSource source;
  std::string rank, size, local_rank, local_size;
};

Result<std::optional<Placement>> from_mpi(const Environment& environment) {
  const std::vector<MpiNames> kinds{
      {WorldSource::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {WorldSource::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
  };
  for (const auto& names : kinds) {
    Placement placement{.source = names.source, .rank_name = names.rank, .size_name = names.size};
    std::optional<int> rank, size;
    LOCKSTEP_RETURN_IF_ERROR(pair(environment, names.rank, names.size, rank, size));
    if (!rank) continue;
    placement.rank = *rank;
    placement.world_size = *size;
    LOCKSTEP_RETURN_IF_ERROR(
        pair(environment, names.local_rank, names.local_size, placement.local_rank, placement.local_world_size));
    const std::string job = job_of_mpirun(environment);
    placement.job_id = job.empty() ? "mpirun" : job;
    placement.first_host = host_of_mpirun(environment);
    return std::optional<Placement>(std::move(placement));
  }
  return std::optional<Placement>();
}

Result<std::optional<Placement>> from_scheduler(const Environment& environment) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto slurm, from_slurm(environment));
  LOCKSTEP_ASSIGN_OR_RETURN(auto mpi, from_mpi(environment));
  if (slurm && mpi && (slurm->rank != mpi->rank || slurm->world_size != mpi->world_size)) return mpi;
  return slurm ? slurm : mpi;
}

Status check_size_variable(const Environment& environment, const std::optional<Placement>& placement) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto size, number(environment, "WORLD_SIZE"));
  if (!size) return {};
  if (!placement) return required(environment, "RANK", "WORLD_SIZE").status();
  if (*size == placement->world_size) return {};
  return invalid(fmt::format("WORLD_SIZE={} contradicts {}={}. Unset WORLD_SIZE, or start that many processes", *size,
                             placement->size_name, placement->world_size));
}

Status against_launcher(const std::optional<int>& argument, std::string_view what, int variable,
                        const std::string& name) {
  if (!argument || *argument == variable) return {};
  return invalid(
      fmt::format("contradictory {}: the argument says {}, the environment says {}={}. Give only one of "
                  "them, or the same value",
                  what, *argument, name, variable));
}

// Adds local values that the source lacks, from a scheduler that gives this process the same rank and world size.
void add_local_values(const Environment& environment, Placement& placement) {
  if (placement.local_rank) return;
  for (const auto from : {from_slurm, from_mpi}) {
    // Errors of a scheduler that did not decide the rank are ignored.
    const Result<std::optional<Placement>> read = from(environment);
    if (!read.ok() || !read.value()) continue;
    const Placement& other = *read.value();
    if (other.rank != placement.rank || other.world_size != placement.world_size || !other.local_rank) continue;
    placement.local_rank = other.local_rank;
    placement.local_world_size = other.local_world_size;
    if (!placement.node_rank) placement.node_rank = other.node_rank;
    if (!placement.num_nodes) placement.num_nodes = other.num_nodes;
    return;
  }
}

// The placement of the first source that gives a rank, with the explicit rank and size in it.
Result<Placement> decide(const WorldArguments& arguments, const Environment& environment) {
  const bool both = arguments.rank && arguments.world_size;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto launcher, from_launcher(environment));
  if (launcher) {
    LOCKSTEP_RETURN_IF_ERROR(against_launcher(arguments.rank, "rank", launcher->rank, "RANK"));
    LOCKSTEP_RETURN_IF_ERROR(against_launcher(arguments.world_size, "world size", launcher->world_size, "WORLD_SIZE"));
    return *launcher;
  }
  if (both) {
    return Placement{.source = WorldSource::kArguments,
                     .rank_name = "argument rank",
                     .size_name = "argument world_size",
                     .rank = *arguments.rank,
                     .world_size = *arguments.world_size};
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto placement, from_scheduler(environment));
  LOCKSTEP_RETURN_IF_ERROR(check_size_variable(environment, placement));
  if (!placement && (arguments.rank || arguments.world_size)) {
    return invalid(fmt::format(
        "the argument {}={} needs {} as well: the environment does not set it", arguments.rank ? "rank" : "world_size",
        arguments.rank ? *arguments.rank : *arguments.world_size, arguments.rank ? "world_size" : "rank"));
  }
  if (!placement) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto local, number(environment, "LOCAL_RANK"));
    if (local) LOCKSTEP_RETURN_IF_ERROR(required(environment, "RANK", "LOCAL_RANK").status());
    return Placement{.source = WorldSource::kNotDistributed, .rank_name = "rank", .size_name = "world size"};
  }
  placement->rank = arguments.rank.value_or(placement->rank);
  placement->world_size = arguments.world_size.value_or(placement->world_size);
  return *std::move(placement);
}

// Addresses that lead every process to its own machine. Connecting to the unspecified address, as a master that is
// called 0.0.0.0 in order to listen everywhere, is connecting to a loopback address.
bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1" || host == "[::1]" || host == "0.0.0.0" ||
         host == "::" || host == "[::]";
}

constexpr std::uint64_t kFirstPort = 10000;
constexpr std::uint64_t kPorts = 20000;
constexpr std::uint64_t kPortsBetweenSteps = 7919;

// "4711.0" of Slurm: the jobs of an array have consecutive numbers and may share a node, so no two of them get the same
// port, nor do the steps of a job. nullopt: not of this form.
std::optional<int> port_for_slurm_step(std::string_view job_id) {
  std::uint64_t job = 0;
  std::uint64_t step = 0;
  const char* const end = job_id.data() + job_id.size();
  const auto [dot, error] = std::from_chars(job_id.data(), end, job);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto [rest, step_error] = std::from_chars(dot + 1, end, step);
  if (step_error != std::errc() || rest != end) return std::nullopt;
  return static_cast<int>(kFirstPort + (job % kPorts + step % kPorts * kPortsBetweenSteps) % kPorts);
}

// The port must be the same on every rank and machine, with any standard library: FNV-1a with 32 bits.
int port_for_job(std::string_view job_id) {
  if (const auto port = port_for_slurm_step(job_id)) return *port;
  std::uint32_t hash = 2166136261U;
  for (const char letter : job_id) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return static_cast<int>(kFirstPort + hash % kPorts);
}

Status resolve_master(const WorldArguments& arguments, const Environment& environment, const Placement& placement,
                      World& world) {
  world.master_addr = arguments.master_addr.value_or(environment.get("MASTER_ADDR").value_or(""));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto port, number(environment, "MASTER_PORT"));
  world.master_port = arguments.master_port.value_or(port.value_or(0));
  if (world.master_port < 0 || world.master_port > 65535) {
    return invalid(fmt::format("MASTER_PORT: expected a port from 1 to 65535, found '{}'", world.master_port));
  }
  if (placement.job_id.empty()) return {};
  if (world.master_addr.empty()) world.master_addr = world.num_nodes == 1 ? "127.0.0.1" : placement.first_host;
  if (world.master_port == 0) world.master_port = port_for_job(placement.job_id);
  return {};
}

// mpirun puts the same random text into the environment of all ranks of a job, and only there. It is this world's
// secret if mpirun gives this process the same rank and world size.
std::string secret_of_mpirun(const Environment& environment, const World& world) {
  const Result<std::optional<Placement>> mpi = from_mpi(environment);
  if (!mpi.ok() || !mpi.value() || mpi.value()->rank != world.rank || mpi.value()->world_size != world.world_size)
    return {};
  return environment.get("OMPI_MCA_orte_precondition_transports").value_or("");
}

void resolve_local_values(const WorldArguments& arguments, const Placement& placement, std::string_view master_addr,
                          World& world) {
  const bool on_one_node = placement.num_nodes == 1 || arguments.num_nodes == 1 || is_loopback(master_addr);
  const auto local_size = arguments.local_world_size ? arguments.local_world_size : placement.local_world_size;
  world.local_world_size = local_size.value_or(on_one_node ? world.world_size : 1);
  const bool fills_node = world.local_world_size >= world.world_size;
  const int divisor = std::max(world.local_world_size, 1);
  const auto local_rank = arguments.local_rank ? arguments.local_rank : placement.local_rank;
  world.local_rank = local_rank.value_or(fills_node ? world.rank : world.rank % divisor);
  world.local_rank_known = local_rank.has_value() || world.world_size == 1;
  const auto node_rank = arguments.node_rank ? arguments.node_rank : placement.node_rank;
  world.node_rank = node_rank.value_or(fills_node ? 0 : world.rank / divisor);
  const auto num_nodes = arguments.num_nodes ? arguments.num_nodes : placement.num_nodes;
  const int estimate = ceil_divide(world.world_size, divisor);
  world.num_nodes = num_nodes.value_or(std::max(estimate, world.node_rank + 1));
}

Status check_below(int value, std::string_view what, int limit, std::string_view limit_what) {
  if (value >= 0 && value < limit) return {};
  return invalid(
      fmt::format("{}={} contradicts {}={}: expected a value from 0 to {}", what, value, limit_what, limit, limit - 1));
}

Status check(const World& world, const Placement& placement) {
  if (world.world_size < 1)
    return invalid(fmt::format("{}={}: expected at least 1", placement.size_name, world.world_size));
  LOCKSTEP_RETURN_IF_ERROR(check_below(world.rank, placement.rank_name, world.world_size, placement.size_name));
  if (world.local_world_size < 1 || world.local_world_size > world.world_size) {
    return invalid(fmt::format("{} processes on this node ({}) contradict {}={}", world.local_world_size,
                               text_of(placement.source), placement.size_name, world.world_size));
  }
  LOCKSTEP_RETURN_IF_ERROR(check_below(world.local_rank, "local rank", world.local_world_size, "local world size"));
  return check_below(world.node_rank, "node rank", world.num_nodes, "number of nodes");
}

struct Joined {
  Mutex mutex;
  std::optional<World> world LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: destructors of static objects may still leave the world.
Joined& joined() {
  static auto* instance = new Joined;
  return *instance;
}

}  // namespace

Result<World> resolve_world(const WorldArguments& arguments, const Environment& environment) {
  link_standby_hook();
  LOCKSTEP_ASSIGN_OR_RETURN(Placement placement, decide(arguments, environment));
  add_local_values(environment, placement);
  World world;
  world.source = text_of(placement.source);
  world.source_kind = placement.source;
  world.rank = placement.rank;
  world.world_size = placement.world_size;
  const auto known_master = arguments.master_addr.value_or(environment.get("MASTER_ADDR").value_or(""));
  resolve_local_values(arguments, placement, known_master, world);
  LOCKSTEP_RETURN_IF_ERROR(check(world, placement));
  LOCKSTEP_RETURN_IF_ERROR(resolve_master(arguments, environment, placement, world));
  world.job_key = environment.get("LOCKSTEP_JOB_KEY").value_or(secret_of_mpirun(environment, world));
  return world;
}

Result<World> resolve_world(const WorldArguments& arguments) {
  return resolve_world(arguments, with_hydra(Environment::of_process()));
}

void set_joined_world(std::optional<World> world) {
  Joined& place = joined();
  MutexLock lock(place.mutex);
  place.world = std::move(world);
}

std::optional<World> joined_world() {
  Joined& place = joined();
  MutexLock lock(place.mutex);
  return place.world;
}

}  // namespace lockstep::launch
