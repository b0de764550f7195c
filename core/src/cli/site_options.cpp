#include "cli/site_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <vector>

#include "launch/cores.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "site/topology.h"

namespace lockstep::cli {

void add_site_options(CLI::App& command, SiteArguments& arguments) {
  command
      .add_option("--devices", arguments.devices,
                  "GPUs for the workers, one or an equal number each: 0,2, auto:N (those with the most free memory) or "
                  "all. Leases keep jobs apart. Default: none is chosen, every worker sees all")
      ->group("Devices");
  command
      .add_option("--visible-devices,--visible_devices", arguments.visible_devices,
                  "With --devices: own (a worker sees its GPUs alone, as cuda:0) or all (every worker sees those of "
                  "all workers; for programs that use cuda:LOCAL_RANK)")
      ->group("Devices")
      ->check(CLI::IsMember({"own", "all"}));
  command
      .add_option("--config", arguments.config,
                  "A YAML file whose section `launch` holds options of this command, with '_' for '-'; device_ids: "
                  "[0, 2]; program: [./train, --epochs, 10]. Options on the command line win")
      ->group("Configuration");
  command
      .add_flag("--print-config,--print_config", arguments.print_config,
                "Print all options and where each comes from, and end")
      ->group("Configuration");
}

Result<site::TakenDevices> apply_devices(const SiteArguments& site, const RunArguments& run, launch::JobOptions& job) {
  if (site.devices.empty()) return site::TakenDevices();
  LOCKSTEP_ASSIGN_OR_RETURN(const site::DeviceRequest request, site::parse_devices(site.devices));
  auto inventory = site::list_gpus();
  if (!inventory.ok()) return inventory.status().with_context("--devices " + site.devices);
  const Environment environment = Environment::of_process();
  const auto visible = site::visible_gpus(inventory->gpus, site::visible_devices_variable());
  LOCKSTEP_ASSIGN_OR_RETURN(const site::LeaseFolder leases, site::LeaseFolder::find(environment));
  LOCKSTEP_ASSIGN_OR_RETURN(site::TakenDevices taken, site::take_devices(request, visible, leases));
  const bool by_gpus = !site.nproc_given || run.nproc_per_node == "gpu" || run.nproc_per_node == "auto";
  if (by_gpus) job.workers = static_cast<int>(taken.gpus.size());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto shares, site::share_gpus(taken.gpus, job.workers));
  std::vector<std::string> names;
  names.reserve(taken.gpus.size());
  for (const site::Gpu& gpu : taken.gpus) names.push_back(site::describe(gpu));
  log::info(fmt::format("devices: {}", fmt::join(names, ", ")));
  for (const auto& share : shares) {
    job.worker_variables.push_back(site::cuda_variables(site.visible_devices == "own" ? share : taken.gpus));
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

Status with_place(const SiteArguments& site, const Status& error) {
  for (const auto& [option, place] : site.places) {
    const bool is_about_it =
        error.message().starts_with(option) && error.message().substr(option.size(), 1).find_first_of(" :") == 0;
    if (is_about_it) return error.with_context(place);
  }
  return error;
}

}  // namespace lockstep::cli
