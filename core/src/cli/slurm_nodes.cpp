#include <fmt/format.h>

#include "cli/commands.h"
#include "launch/world/slurm.h"
#include "lockstep/launch/world.h"
#include "lockstep/store/endpoint.h"

namespace lockstep::cli {
namespace {

bool wants_one_node(const RunOptions& options, bool nnodes_given) {
  return options.standalone || !options.hosts.empty() || (nnodes_given && options.nnodes == "1");
}

Status one_launcher_a_node(const launch::World& world) {
  if (world.local_world_size == 1) return {};
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("srun has started {} launchers on this node, expected one, which starts the workers: srun "
                  "--ntasks-per-node=1 lockstep run --nproc-per-node {} ... (--standalone: the launchers have "
                  "nothing to do with one another)",
                  world.local_world_size, world.local_world_size));
}

// Node 0 serves where the number of nodes is fixed, as with torchrun's --master-addr; else the first node's address.
void choose_meeting(const launch::World& world, RunOptions& options) {
  if (!options.rdzv_endpoint.empty() || !options.master_addr.empty()) return;
  if (options.rdzv_backend != "c10d" && options.nnodes.find(':') == std::string::npos) {
    options.master_addr = world.master_addr;
    if (options.master_port.value_or(0) <= 0) options.master_port = world.master_port;
    return;
  }
  const comm::Endpoint endpoint{world.master_addr, static_cast<std::uint16_t>(world.master_port)};
  options.rdzv_endpoint = endpoint.text();
}

}  // namespace

Status take_nodes_from_slurm(const Environment& environment, bool nnodes_given, RunOptions& options) {
  if (wants_one_node(options, nnodes_given) || !launch::inside_slurm_step(environment)) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(const launch::World world, launch::resolve_world({}, environment));
  if (world.source_kind != launch::WorldSource::kSlurm || world.world_size == 1) return {};
  LOCKSTEP_RETURN_IF_ERROR(one_launcher_a_node(world));
  if (!nnodes_given) options.nnodes = std::to_string(world.world_size);
  if (!options.node_rank) options.node_rank = world.rank;
  choose_meeting(world, options);
  if (options.job.run_id.empty()) options.job.run_id = launch::slurm_run_name(environment);
  return {};
}

}  // namespace lockstep::cli
