// What a site decides about `lockstep run`: a configuration file, and which GPUs and cores the workers get.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/run_options.h"
#include "launch/agent.h"
#include "lockstep/base/status.h"
#include "site/devices.h"

namespace lockstep::cli {

struct SiteArguments {
  std::string devices;                  // --devices; empty: the launcher chooses no GPUs
  std::string visible_devices = "own";  // --visible-devices
  std::string config;                   // --config; empty: none
  bool print_config = false;
  bool nproc_given = false;   // whether a layer says --nproc-per-node
  bool nnodes_given = false;  // and --nnodes
  // The options that the file or a variable gave, and where: {"--tee", "config.yaml:3:8"}.
  std::vector<std::pair<std::string, std::string>> places;
};

void add_site_options(CLI::App& command, SiteArguments& arguments);

// An error about an option that the file or a variable gave, with that place.
Status with_place(const SiteArguments& site, const Status& error);

// Takes leases on the GPUs that --devices names, and gives each worker its own. The leases end with the result. Without
// --devices nothing happens.
Result<site::TakenDevices> apply_devices(const SiteArguments& site, const RunArguments& run, launch::JobOptions& job);

// Cores for each worker where hwloc knows better than equal shares: several NUMA nodes, hyperthreads, GPUs.
void apply_placement(const site::TakenDevices& devices, launch::JobOptions& job);

}  // namespace lockstep::cli
