#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cli/run_options.h"
#include "launch/process/cores.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "site/topology.h"

namespace lockstep::cli {

Result<site::TakenDevices> apply_devices(const RunOptions& options, bool nproc_given, launch::JobOptions& job) {
  if (options.devices.empty()) return site::TakenDevices();
  LOCKSTEP_ASSIGN_OR_RETURN(const site::DeviceRequest request, site::parse_devices(options.devices));
  auto inventory = site::list_gpus();
  if (!inventory.ok()) return inventory.status().with_context("--devices " + options.devices);
  const Environment environment = Environment::of_process();
  const auto visible = site::visible_gpus(inventory->gpus, site::visible_devices_variable());
  LOCKSTEP_ASSIGN_OR_RETURN(const site::LeaseFolder leases, site::LeaseFolder::find(environment));
  LOCKSTEP_ASSIGN_OR_RETURN(site::TakenDevices taken, site::take_devices(request, visible, leases));
  const bool by_gpus = !nproc_given || options.nproc_per_node == "gpu" || options.nproc_per_node == "auto";
  if (by_gpus) job.workers = static_cast<int>(taken.gpus.size());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto shares, site::share_gpus(taken.gpus, job.workers));
  std::vector<std::string> names;
  names.reserve(taken.gpus.size());
  for (const site::Gpu& gpu : taken.gpus) names.push_back(site::describe(gpu));
  log::info(fmt::format("devices: {}", fmt::join(names, ", ")));
  for (const auto& share : shares) {
    job.worker_variables.push_back(site::cuda_variables(options.visible_devices == "own" ? share : taken.gpus));
  }
  return taken;
}

void apply_placement(const site::TakenDevices& devices, launch::JobOptions& job) {
  if (!job.pin_cores || (devices.gpus.empty() && !site::has_structure())) return;
  auto topology = site::read_topology();
  if (!topology.ok()) return log::info(topology.status().message() + "; workers get equal shares of the cores");
  std::vector<int> near(static_cast<std::size_t>(job.workers), -1);
  // If a worker has several GPUs, the first counts.
  for (std::size_t i = 0; i < near.size() && !devices.gpus.empty(); ++i) {
    near[i] = devices.gpus[i * devices.gpus.size() / near.size()].numa_node;
  }
  job.worker_cores = site::place_workers(topology.value(), near);
  // Two threads of numeric work on one core are slower than one.
  job.cores = std::min(static_cast<int>(topology->cores.size()), launch::usable_cores());
}

}  // namespace lockstep::cli
