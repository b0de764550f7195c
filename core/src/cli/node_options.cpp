#include "cli/node_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "base/number_text.h"

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

Result<std::chrono::milliseconds> seconds_of(std::string_view key, std::string_view text) {
  const std::string number(text);
  char* end = nullptr;
  const double seconds = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !(seconds >= 0 && seconds < 1e8)) {
    return wrong(fmt::format("--rdzv-conf {}='{}': expected seconds, such as 60 or 0.5", key, text));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

Result<bool> flag_of(std::string_view key, std::string_view text) {
  if (text == "1" || text == "true" || text == "True") return true;
  if (text == "0" || text == "false" || text == "False") return false;
  return wrong(fmt::format("--rdzv-conf {}='{}': expected true or false", key, text));
}

Status apply_setting(std::string_view key, std::string_view value, launch::NodesOptions& nodes) {
  if (key == "join_timeout" || key == "timeout") {
    LOCKSTEP_ASSIGN_OR_RETURN(nodes.join_timeout, seconds_of(key, value));
    if (nodes.join_timeout <= std::chrono::milliseconds::zero()) {
      return wrong(fmt::format("--rdzv-conf {}='{}': expected more than 0 seconds", key, value));
    }
  } else if (key == "last_call_timeout") {
    LOCKSTEP_ASSIGN_OR_RETURN(nodes.last_call, seconds_of(key, value));
  } else if (key == "silence") {
    LOCKSTEP_ASSIGN_OR_RETURN(nodes.meeting.silence, seconds_of(key, value));
    if (nodes.meeting.silence < std::chrono::seconds(2)) {
      return wrong(fmt::format("--rdzv-conf silence='{}': expected 2 seconds or more", value));
    }
  } else if (key == "is_host") {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool here, flag_of(key, value));
    nodes.meeting.store_place = here ? launch::StorePlace::kHere : launch::StorePlace::kElsewhere;
  } else if (key == "reports") {
    LOCKSTEP_ASSIGN_OR_RETURN(nodes.reports, flag_of(key, value));
  } else if (key == "same_program") {
    LOCKSTEP_ASSIGN_OR_RETURN(nodes.same_command, flag_of(key, value));
  } else {
    return wrong(
        fmt::format("--rdzv-conf {}: unknown; there are join_timeout (or timeout), last_call_timeout, silence, "
                    "is_host, same_program and reports",
                    key));
  }
  return {};
}

Status apply_conf(std::string_view text, launch::NodesOptions& nodes) {
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view setting = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = setting.find('=');
    if (equals == std::string_view::npos) {
      return wrong(fmt::format("--rdzv-conf '{}': expected KEY=VALUE,KEY=VALUE,...", setting));
    }
    LOCKSTEP_RETURN_IF_ERROR(apply_setting(setting.substr(0, equals), setting.substr(equals + 1), nodes));
  }
  return {};
}

Status apply_to_one_node(const NodeArguments& arguments, const std::optional<comm::Endpoint>& endpoint,
                         launch::JobOptions& job) {
  if (arguments.node_rank > 0) {
    return wrong(fmt::format("--node-rank {}: with one node it can only be 0", arguments.node_rank));
  }
  if (!arguments.master_addr.empty()) job.master_addr = arguments.master_addr;
  job.master_port = std::max(0, arguments.master_port);
  if (endpoint && !arguments.standalone) {
    job.master_addr = endpoint->host;
    job.master_port = endpoint->port;
  }
  return {};
}

// The nodes have a fixed number, and node 0 serves.
Status apply_static(const NodeArguments& arguments, launch::NodesOptions& nodes) {
  if (nodes.min_nodes != nodes.max_nodes) {
    return wrong(
        fmt::format("--nnodes {}: --rdzv-backend static (the default with --master-addr) needs a fixed number "
                    "of nodes; use --rdzv-backend c10d",
                    arguments.nnodes));
  }
  if (arguments.node_rank < 0) {
    return wrong(
        "--rdzv-backend static (the default with --master-addr) needs the --node-rank of every node, from 0; with "
        "--rdzv-endpoint nodes are numbered as they come");
  }
  nodes.meeting.store_place = arguments.node_rank == 0 ? launch::StorePlace::kHere : launch::StorePlace::kElsewhere;
  return {};
}

Status apply_to_several_nodes(const NodeArguments& arguments, const std::optional<comm::Endpoint>& endpoint,
                              launch::NodesOptions& nodes) {
  if (arguments.standalone) {
    return wrong(fmt::format("--standalone is for one node, and --nnodes is {}", arguments.nnodes));
  }
  if (!endpoint && arguments.master_addr.empty()) {
    return wrong(
        fmt::format("--nnodes {}: the nodes need a place to meet: --rdzv-endpoint HOST[:PORT], the same on all "
                    "of them, where HOST is one of the nodes; or --master-addr and --node-rank",
                    arguments.nnodes));
  }
  if (arguments.node_rank >= nodes.max_nodes) {
    return wrong(fmt::format("--node-rank {}: expected a number from 0 to {} with --nnodes {}", arguments.node_rank,
                             nodes.max_nodes - 1, arguments.nnodes));
  }
  const bool is_static = arguments.rdzv_backend.empty() ? !endpoint : arguments.rdzv_backend == "static";
  if (is_static) LOCKSTEP_RETURN_IF_ERROR(apply_static(arguments, nodes));
  const int other_port = arguments.master_port > 0 ? arguments.master_port : kMasterPort;
  nodes.meeting.endpoint = endpoint.value_or(comm::Endpoint{arguments.master_addr, 0});
  if (nodes.meeting.endpoint.port == 0) {
    nodes.meeting.endpoint.port = static_cast<std::uint16_t>(endpoint && !is_static ? kRendezvousPort : other_port);
  }
  nodes.node_rank = arguments.node_rank;
  nodes.meeting.local_addr = arguments.local_addr;
  nodes.meeting.job_key_file = arguments.job_key_file;
  return {};
}

}  // namespace

std::string both_spellings(const std::string& names) {
  const std::size_t begin = names.find("--");
  std::string underscores = names.substr(begin);
  std::replace(underscores.begin() + 2, underscores.end(), '-', '_');
  return underscores == names.substr(begin) ? names : names + "," + underscores;
}

std::string pet_variable(const std::string& names) {
  std::string name = names.substr(names.find("--") + 2);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return letter == '-' ? '_' : std::toupper(letter); });
  return "PET_" + name;
}

void add_node_options(CLI::App& command, NodeArguments& arguments) {
  const auto option = [&](const char* names, auto& value, const char* help) {
    return command.add_option(both_spellings(names), value, help)->group("Nodes")->envname(pet_variable(names));
  };
  option("--nnodes", arguments.nnodes,
         "How many machines: N, or MIN:MAX when nodes may come and go. Default 1; under srun the tasks of the step");
  option("--node-rank", arguments.node_rank,
         "This machine's number, from 0. Default with --rdzv-endpoint: the order in which the nodes come")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  option("--rdzv-endpoint", arguments.rdzv_endpoint,
         "HOST[:PORT] where the launchers of all nodes meet. The launcher on HOST serves it, unless a store is there "
         "already. Default port 29400");
  option("--rdzv-id", arguments.rdzv_id, "The job's name (TORCHELASTIC_RUN_ID, log folder). Default: random");
  option("--rdzv-backend", arguments.rdzv_backend,
         "c10d (the default with --rdzv-endpoint): the launcher at HOST serves, nodes may come and go; static (the "
         "default with --master-addr): node 0 serves, a fixed number of nodes")
      ->check(CLI::IsMember({"c10d", "static"}));
  option("--rdzv-conf", arguments.rdzv_conf,
         "KEY=VALUE,...: join_timeout (600 s for the fewest nodes to come), last_call_timeout (30 s for more), silence "
         "(2 s until a machine is lost), is_host, same_program, reports");
  option("--master-addr", arguments.master_addr,
         "One node: MASTER_ADDR for the workers, default 127.0.0.1. Several: the address of node 0");
  option("--master-port", arguments.master_port,
         "One node: MASTER_PORT for the workers, default a free one. Several: where node 0 serves, default 29500")
      ->check(CLI::Range(0, 65535));
  option("--local-addr", arguments.local_addr,
         "The address at which the other nodes reach this one. Default: the one that reaches the endpoint");
  command
      .add_option("--job-key-file", arguments.job_key_file,
                  "A file with the job's secret, the same for all nodes; -: the first line of standard input. Default: "
                  "LOCKSTEP_JOB_KEY, else the key in "
                  "the home directory")
      ->group("Nodes");
  command
      .add_option(
          "--hosts", arguments.hosts,
          "A,B:4,...: starts a launcher on each of these machines over ssh, B with 4 workers, and ends them with "
          "this one")
      ->group("Nodes");
  command
      .add_option("--ssh", arguments.ssh,
                  "The command for --hosts; it is given the host's name and a command line. Default: ssh -o "
                  "BatchMode=yes")
      ->group("Nodes");
  command
      .add_flag("--standalone", arguments.standalone,
                "One machine, a free port: the default here. Ignores --rdzv-endpoint, as torchrun does")
      ->group("Nodes")
      ->envname(pet_variable("--standalone"));
}

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

Result<launch::HostsOptions> to_hosts_options(const NodeArguments& arguments, const std::string& nproc_per_node,
                                              const std::vector<std::string>& words,
                                              const std::vector<std::string>& program) {
  if (program.empty()) return wrong("no program to run was given: lockstep run --hosts A,B [options] PROGRAM [args]");
  if (program.front().starts_with('-')) {
    return wrong(fmt::format("unknown option '{}'; `lockstep run --help` lists them all", program.front()));
  }
  launch::HostsOptions hosts;
  LOCKSTEP_ASSIGN_OR_RETURN(hosts.hosts, launch::parse_hosts(arguments.hosts));
  const int count = static_cast<int>(hosts.hosts.size());
  const std::string nnodes = arguments.nnodes == "1" ? std::to_string(count) : arguments.nnodes;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto counts, parse_nnodes(nnodes));
  if (counts.second != count) {
    return wrong(fmt::format("--nnodes {} contradicts --hosts, which names {}", arguments.nnodes, count));
  }
  if (arguments.node_rank >= 0 || !arguments.rdzv_endpoint.empty() || !arguments.master_addr.empty() ||
      arguments.master_port >= 0 || arguments.standalone || !arguments.job_key_file.empty()) {
    return wrong(
        "--hosts numbers the nodes, and says where they meet and with which key: leave out --node-rank, "
        "--rdzv-endpoint, --master-addr, --master-port, --standalone and --job-key-file");
  }
  if (count == 1) return wrong("--hosts: with one host, start the job there: ssh HOST lockstep run ...");
  hosts.min_nodes = counts.first;
  LOCKSTEP_ASSIGN_OR_RETURN(hosts.ssh, launch::split_words(arguments.ssh));
  if (hosts.ssh.empty()) return wrong("--ssh: expected a command");
  hosts.local_addr = arguments.local_addr;
  hosts.nproc_per_node = nproc_per_node;
  hosts.run_id = arguments.rdzv_id;
  hosts.rdzv_conf = arguments.rdzv_conf.empty() ? "join_timeout=60" : arguments.rdzv_conf;
  // The launchers read the configuration file too, but its values of the last two options are for this process alone.
  hosts.options = {"--nnodes", nnodes, "--rdzv-backend", "c10d", "--hosts", "", "--local-addr", ""};
  const std::vector<std::string> rest =
      launch::without_options(words, {"--hosts", "--ssh", "--nnodes", "--local-addr", "--rdzv-id", "--rdzv-conf",
                                      "--rdzv-backend", "--nproc-per-node"});
  hosts.options.insert(hosts.options.end(), rest.begin(), rest.end());
  hosts.program = program;
  return hosts;
}

Status apply_node_options(const NodeArguments& arguments, launch::JobOptions& job) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto counts, parse_nnodes(arguments.nnodes));
  job.nodes.min_nodes = counts.first;
  job.nodes.max_nodes = counts.second;
  job.run_id = arguments.rdzv_id;
  LOCKSTEP_RETURN_IF_ERROR(apply_conf(arguments.rdzv_conf, job.nodes));
  std::optional<comm::Endpoint> endpoint;
  if (!arguments.rdzv_endpoint.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(endpoint, parse_rdzv_endpoint(arguments.rdzv_endpoint));
  }
  if (counts.second == 1) return apply_to_one_node(arguments, endpoint, job);
  return apply_to_several_nodes(arguments, endpoint, job.nodes);
}

}  // namespace lockstep::cli
