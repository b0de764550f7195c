#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "base/number_text.h"
#include "cli/commands.h"
#include "cli/run_options.h"
#include "launch/process/cores.h"
#include "launch/world/slurm.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/world.h"
#include "lockstep/store/endpoint.h"
#include "site/topology.h"

namespace lockstep::cli {
namespace {

// torchrun's, where the endpoint names none.
constexpr int kRendezvousPort = 29400;
constexpr int kMasterPort = 29500;

Status wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// HOST or HOST:PORT, IPv6 addresses in brackets. The port is 0 if it is not given.
Result<comm::Endpoint> parse_rdzv_endpoint(std::string_view text) {
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = text.substr(0, colon);
  if (bracket == std::string_view::npos && colon != text.rfind(':')) {
    return wrong(
        fmt::format("--rdzv-endpoint '{}': expected an IPv6 address in brackets: [fd00::1] or [fd00::1]:29400", text));
  }
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (host.empty()) return wrong(fmt::format("--rdzv-endpoint '{}': expected HOST or HOST:PORT", text));
  comm::Endpoint endpoint{std::string(host), 0};
  if (colon == std::string_view::npos) return endpoint;
  const std::optional<int> port = number_from_text<int>(text.substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return wrong(fmt::format("--rdzv-endpoint '{}': '{}' is not a port, expected a number up to 65535", text,
                             text.substr(colon + 1)));
  }
  endpoint.port = static_cast<std::uint16_t>(*port);
  return endpoint;
}

Status apply_conf(std::string_view text, launch::NodesOptions& nodes) {
  options::Table table;
  options::Section settings = table.section("", "");
  settings.key("join_timeout", nodes.join_timeout, "").at_least(0.001).word();
  std::chrono::milliseconds timeout = nodes.join_timeout;
  settings.key("timeout", timeout, "").at_least(0.001).word();
  settings.key("last_call_timeout", nodes.last_call, "").word();
  settings.key("silence", nodes.meeting.silence, "").at_least(2).word();
  constexpr auto kHere = launch::StorePlace::kHere;
  constexpr auto kElsewhere = launch::StorePlace::kElsewhere;
  settings
      .key("is_host", nodes.meeting.store_place,
           {{"true", kHere},
            {"false", kElsewhere},
            {"True", kHere},
            {"False", kElsewhere},
            {"1", kHere},
            {"0", kElsewhere}},
           "")
      .word();
  settings.key("same_program", nodes.same_command, "").word();
  settings.key("reports", nodes.reports, "").word();
  std::vector<options::Option> given;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string setting(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return wrong(fmt::format("--rdzv-conf '{}': expected KEY=VALUE,KEY=VALUE,...", setting));
    }
    given.push_back({setting.substr(0, equals), setting.substr(equals + 1)});
    if (table.find_option(given.back().name) != nullptr) continue;
    std::vector<std::string> known;
    for (const options::Key& key : table.keys()) known.push_back(key.name());
    return wrong(fmt::format("--rdzv-conf {}: unknown; there are {}", given.back().name, fmt::join(known, ", ")));
  }
  LOCKSTEP_RETURN_IF_ERROR(table.read({.options = given}).with_context("--rdzv-conf"));
  // Both names mean the same: the last one counts.
  const auto last = std::find_if(given.rbegin(), given.rend(), [](const options::Option& option) {
    return option.name == "timeout" || option.name == "join_timeout";
  });
  if (last != given.rend() && last->name == "timeout") nodes.join_timeout = timeout;
  return {};
}

Status apply_to_one_node(const RunOptions& options, const std::optional<comm::Endpoint>& endpoint,
                         launch::JobOptions& job) {
  if (options.node_rank.value_or(0) > 0) {
    return wrong(fmt::format("--node-rank {}: with one node it can only be 0", *options.node_rank));
  }
  if (!options.master_addr.empty()) job.master_addr = options.master_addr;
  job.master_port = options.master_port.value_or(0);
  if (endpoint && !options.standalone) {
    job.master_addr = endpoint->host;
    job.master_port = endpoint->port;
  }
  return {};
}

// The nodes have a fixed number, and node 0 serves.
Status apply_static(const RunOptions& options, launch::NodesOptions& nodes) {
  if (nodes.min_nodes != nodes.max_nodes) {
    return wrong(
        fmt::format("--nnodes {}: --rdzv-backend static (the default with --master-addr) needs a fixed number "
                    "of nodes; use --rdzv-backend c10d",
                    options.nnodes));
  }
  if (!options.node_rank) {
    return wrong(
        "--rdzv-backend static (the default with --master-addr) needs the --node-rank of every node, from 0; with "
        "--rdzv-endpoint nodes are numbered as they come");
  }
  nodes.meeting.store_place = options.node_rank == 0 ? launch::StorePlace::kHere : launch::StorePlace::kElsewhere;
  return {};
}

Status apply_to_several_nodes(const RunOptions& options, const std::optional<comm::Endpoint>& endpoint,
                              launch::NodesOptions& nodes) {
  if (options.standalone) {
    return wrong(fmt::format("--standalone is for one node, and --nnodes is {}", options.nnodes));
  }
  if (!endpoint && options.master_addr.empty()) {
    return wrong(
        fmt::format("--nnodes {}: the nodes need a place to meet: --rdzv-endpoint HOST[:PORT], the same on all "
                    "of them, where HOST is one of the nodes; or --master-addr and --node-rank",
                    options.nnodes));
  }
  if (options.node_rank >= nodes.max_nodes) {
    return wrong(fmt::format("--node-rank {}: expected a number from 0 to {} with --nnodes {}", *options.node_rank,
                             nodes.max_nodes - 1, options.nnodes));
  }
  const bool is_static = options.rdzv_backend ? options.rdzv_backend == "static" : !endpoint;
  if (is_static) LOCKSTEP_RETURN_IF_ERROR(apply_static(options, nodes));
  const int other_port = options.master_port.value_or(0) > 0 ? *options.master_port : kMasterPort;
  nodes.meeting.endpoint = endpoint.value_or(comm::Endpoint{options.master_addr, 0});
  if (nodes.meeting.endpoint.port == 0) {
    nodes.meeting.endpoint.port = static_cast<std::uint16_t>(endpoint && !is_static ? kRendezvousPort : other_port);
  }
  nodes.node_rank = options.node_rank.value_or(-1);
  return {};
}

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

Result<std::pair<int, int>> parse_nnodes(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::optional<int> least = number_from_text<int>(text.substr(0, colon));
  const std::optional<int> most =
      colon == std::string_view::npos ? least : number_from_text<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    return wrong(fmt::format("--nnodes '{}': expected a number from 1, or MIN:MAX", text));
  }
  return std::pair(*least, *most);
}

Result<launch::HostsOptions> to_hosts_options(const RunOptions& options, const options::Table& table) {
  if (options.program.empty()) {
    return wrong("no program to run was given: lockstep run --hosts A,B [options] PROGRAM [args]");
  }
  launch::HostsOptions hosts;
  LOCKSTEP_ASSIGN_OR_RETURN(hosts.hosts, launch::parse_hosts(options.hosts));
  const int count = static_cast<int>(hosts.hosts.size());
  const std::string nnodes = options.nnodes == "1" ? std::to_string(count) : options.nnodes;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto counts, parse_nnodes(nnodes));
  if (counts.second != count) {
    return wrong(fmt::format("--nnodes {} contradicts --hosts, which names {}", options.nnodes, count));
  }
  if (options.node_rank || !options.rdzv_endpoint.empty() || !options.master_addr.empty() || options.master_port ||
      options.standalone || !options.job.nodes.meeting.job_key_file.empty()) {
    return wrong(
        "--hosts numbers the nodes, and says where they meet and with which key: leave out --node-rank, "
        "--rdzv-endpoint, --master-addr, --master-port, --standalone and --job-key-file");
  }
  if (options.job.min_workers > 0) return wrong("--min-workers: expected a job of one node, found --hosts");
  if (count == 1) return wrong("--hosts: with one host, start the job there: ssh HOST lockstep run ...");
  hosts.min_nodes = counts.first;
  LOCKSTEP_ASSIGN_OR_RETURN(hosts.ssh, launch::split_words(options.ssh));
  if (hosts.ssh.empty()) return wrong("--ssh: expected a command");
  hosts.local_addr = options.job.nodes.meeting.local_addr;
  if (table.find("launch.nproc_per_node")->is_given()) hosts.nproc_per_node = options.nproc_per_node;
  hosts.run_id = options.job.run_id;
  hosts.rdzv_conf = options.rdzv_conf.empty() ? "join_timeout=60" : options.rdzv_conf;
  hosts.grace = options.job.grace;
  // The launchers read the configuration file too, but its values of the last two options are for this process alone.
  hosts.options = {"--nnodes", nnodes, "--rdzv-backend", "c10d", "--hosts", "", "--local-addr", ""};
  static const std::set<std::string> kNotForLaunchers{"hosts",   "ssh",       "nnodes",       "local_addr",
                                                      "rdzv_id", "rdzv_conf", "rdzv_backend", "nproc_per_node"};
  for (const options::Key& key : table.keys()) {
    const bool typed =
        key.origin().layer == options::Layer::kCommandLine || key.origin().layer == options::Layer::kEnvironment;
    if (!typed || !key.is_option() || kNotForLaunchers.contains(key.name())) continue;
    hosts.options.push_back(fmt::format("{}={}", table.option_of(key), key.origin().text));
  }
  hosts.program = options.program;
  return hosts;
}

Status apply_node_options(const RunOptions& options, launch::JobOptions& job) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto counts, parse_nnodes(options.nnodes));
  job.nodes.min_nodes = counts.first;
  job.nodes.max_nodes = counts.second;
  LOCKSTEP_RETURN_IF_ERROR(apply_conf(options.rdzv_conf, job.nodes));
  std::optional<comm::Endpoint> endpoint;
  if (!options.rdzv_endpoint.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(endpoint, parse_rdzv_endpoint(options.rdzv_endpoint));
  }
  if (counts.second == 1) return apply_to_one_node(options, endpoint, job);
  return apply_to_several_nodes(options, endpoint, job.nodes);
}

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
