#include "cli/slurm_nodes.h"

#include <fmt/format.h>

#include "launch/slurm.h"
#include "lockstep/launch/world.h"
#include "lockstep/store/endpoint.h"

namespace lockstep::cli {
namespace {

bool wants_one_node(const NodeArguments& arguments, bool nnodes_given) {
  return arguments.standalone || !arguments.hosts.empty() || (nnodes_given && arguments.nnodes == "1");
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
void choose_meeting(const launch::World& world, NodeArguments& arguments) {
  if (!arguments.rdzv_endpoint.empty() || !arguments.master_addr.empty()) return;
  if (arguments.rdzv_backend != "c10d" && arguments.nnodes.find(':') == std::string::npos) {
    arguments.master_addr = world.master_addr;
    if (arguments.master_port <= 0) arguments.master_port = world.master_port;
    return;
  }
  const comm::Endpoint endpoint{world.master_addr, static_cast<std::uint16_t>(world.master_port)};
  arguments.rdzv_endpoint = endpoint.text();
}

}  // namespace

Status take_nodes_from_slurm(const Environment& environment, bool nnodes_given, NodeArguments& arguments) {
  if (wants_one_node(arguments, nnodes_given) || !launch::inside_slurm_step(environment)) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(const launch::World world, launch::resolve_world({}, environment));
  if (world.source_kind != launch::WorldSource::kSlurm || world.world_size == 1) return {};
  LOCKSTEP_RETURN_IF_ERROR(one_launcher_a_node(world));
  if (!nnodes_given) arguments.nnodes = std::to_string(world.world_size);
  if (arguments.node_rank < 0) arguments.node_rank = world.rank;
  choose_meeting(world, arguments);
  if (arguments.rdzv_id.empty()) arguments.rdzv_id = launch::slurm_run_name(environment);
  return {};
}

}  // namespace lockstep::cli
