#include "store/membership/init_method.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/number_text.h"

namespace lockstep::comm {
namespace {

using Method = RendezvousPlan::Method;

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// A number and its source, for messages.
struct Said {
  int value;
  std::string source;
};

Result<int> parse_number(std::string_view text, std::string_view what) {
  const std::optional<int> value = number_from_text<int>(text);
  if (value && *value >= 0) return *value;
  return invalid(fmt::format("{}: expected a whole number from 0, found '{}'", what, text));
}

// Rank and world size, each as all its sources say it.
struct Claims {
  std::vector<Said> rank;
  std::vector<Said> world_size;
};

void claim_arguments(const RendezvousOptions& options, Claims& claims) {
  if (options.rank >= 0) claims.rank.push_back({options.rank, "argument rank"});
  if (options.world_size >= 0) claims.world_size.push_back({options.world_size, "argument world_size"});
}

Status claim_variable(const Environment& environment, const std::string& name, std::vector<Said>& said) {
  if (const auto text = environment.get(name)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int value, parse_number(*text, name));
    said.push_back({value, "environment variable " + name});
  }
  return {};
}

// "rank=1&world_size=2"
Status claim_query(std::string_view query, const std::string& url, Claims& claims) {
  while (!query.empty()) {
    const auto item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    if (equals == std::string_view::npos || (name != "rank" && name != "world_size")) {
      return invalid(fmt::format("init_method '{}': expected rank=N or world_size=N after '?', found '{}'", url, item));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const int value,
                              parse_number(item.substr(equals + 1), fmt::format("init_method '{}', {}", url, name)));
    (name == "rank" ? claims.rank : claims.world_size).push_back({value, fmt::format("init_method '{}'", url)});
  }
  return {};
}

Status check_agreement(const std::vector<Said>& said, std::string_view what) {
  for (const auto& other : said) {
    if (other.value != said[0].value) {
      return invalid(fmt::format("contradictory {}: {} says {}, {} says {}. Give only one of them, or the same value",
                                 what, said[0].source, said[0].value, other.source, other.value));
    }
  }
  return {};
}

// Copies the claims into the plan, or adds to `missing` what no source says.
Status settle(const Claims& claims, RendezvousPlan& plan, std::vector<std::string>& missing) {
  LOCKSTEP_RETURN_IF_ERROR(check_agreement(claims.rank, "rank"));
  LOCKSTEP_RETURN_IF_ERROR(check_agreement(claims.world_size, "world size"));
  if (claims.rank.empty()) missing.emplace_back("RANK");
  if (claims.world_size.empty()) missing.emplace_back("WORLD_SIZE");
  if (!claims.rank.empty()) plan.rank = claims.rank[0].value;
  if (!claims.world_size.empty()) plan.world_size = claims.world_size[0].value;
  if (plan.world_size < 1) {
    return invalid(
        fmt::format("the world size is at least 1, but {} says {}", claims.world_size[0].source, plan.world_size));
  }
  return {};
}

Status report_missing(const std::vector<std::string>& missing, const std::string& init_method) {
  if (missing.empty()) return {};
  return invalid(
      fmt::format("init_method '{}' needs {}, not set: start the program with `lockstep run`, or set {} on "
                  "every rank, or give rank and world_size as arguments",
                  init_method, fmt::join(missing, ", "), missing.size() == 1 ? "it" : "them"));
}

Result<Endpoint> master_endpoint(const RendezvousOptions& options, std::vector<std::string>& missing) {
  const auto& environment = options.environment;
  Endpoint endpoint{options.master_addr, 0};
  if (endpoint.host.empty()) endpoint.host = environment.get("MASTER_ADDR").value_or("");
  if (endpoint.host.empty()) missing.emplace_back("MASTER_ADDR");
  std::string port = options.master_port >= 0 ? std::to_string(options.master_port) : "";
  if (port.empty()) port = environment.get("MASTER_PORT").value_or("");
  if (port.empty()) {
    missing.emplace_back("MASTER_PORT");
    return endpoint;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(endpoint.port, parse_port(port, "MASTER_PORT"));
  if (endpoint.port == 0) return invalid("MASTER_PORT: expected a port from 1 to 65535, found '0'");
  // torchrun's agent serves its own store at MASTER_PORT itself.
  if (options.master_port < 0 && environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    endpoint.port = static_cast<std::uint16_t>(endpoint.port == 65535 ? 65534 : endpoint.port + 1);
  }
  return endpoint;
}

Status plan_env(const RendezvousOptions& options, RendezvousPlan& plan) {
  Claims claims;
  claim_arguments(options, claims);
  LOCKSTEP_RETURN_IF_ERROR(claim_variable(options.environment, "RANK", claims.rank));
  LOCKSTEP_RETURN_IF_ERROR(claim_variable(options.environment, "WORLD_SIZE", claims.world_size));
  std::vector<std::string> missing;
  LOCKSTEP_RETURN_IF_ERROR(settle(claims, plan, missing));
  plan.method = Method::kTcp;
  const bool alone = missing.empty() && plan.world_size == 1;
  if (const auto store = options.environment.get("LOCKSTEP_STORE"); store && !alone) {
    LOCKSTEP_ASSIGN_OR_RETURN(plan.endpoint, parse_endpoint(*store, "LOCKSTEP_STORE"));
  } else if (!alone) {
    LOCKSTEP_ASSIGN_OR_RETURN(plan.endpoint, master_endpoint(options, missing));
    plan.serves = plan.rank == 0;
  }
  return report_missing(missing, options.init_method);
}

Status plan_url(const RendezvousOptions& options, RendezvousPlan& plan) {
  const std::string_view url = options.init_method;
  const auto question = url.find('?');
  const std::string_view place = url.substr(6, question == std::string_view::npos ? question : question - 6);
  Claims claims;
  claim_arguments(options, claims);
  if (question != std::string_view::npos) {
    LOCKSTEP_RETURN_IF_ERROR(claim_query(url.substr(question + 1), options.init_method, claims));
  }
  // A process may use an address and numbers of its own, other than its launcher's. So the variables count only where
  // neither the arguments nor the URL say anything.
  if (claims.rank.empty()) LOCKSTEP_RETURN_IF_ERROR(claim_variable(options.environment, "RANK", claims.rank));
  if (claims.world_size.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(claim_variable(options.environment, "WORLD_SIZE", claims.world_size));
  }
  std::vector<std::string> missing;
  LOCKSTEP_RETURN_IF_ERROR(settle(claims, plan, missing));
  LOCKSTEP_RETURN_IF_ERROR(report_missing(missing, options.init_method));
  if (url.starts_with("tcp://")) {
    plan.method = Method::kTcp;
    LOCKSTEP_ASSIGN_OR_RETURN(plan.endpoint, parse_endpoint(place, fmt::format("init_method '{}'", url)));
    plan.serves = plan.rank == 0;
    if (plan.endpoint.port != 0) return {};
    return invalid(fmt::format("init_method '{}': port 0 means nothing to the other ranks; name one", url));
  }
  plan.method = Method::kFile;
  plan.path = place.substr(1);
  if (plan.path.size() > 1 && plan.path[0] == '/') return {};
  return invalid(fmt::format("init_method '{}': expected file:///absolute/path, with three slashes", url));
}

void finish(const RendezvousOptions& options, RendezvousPlan& plan) {
  if (plan.world_size == 1 && plan.rank == 0 && plan.method != Method::kGivenStore) plan.method = Method::kAlone;
  const auto& environment = options.environment;
  plan.job_key = options.job_key.empty() ? environment.get("LOCKSTEP_JOB_KEY").value_or("") : options.job_key;
  const auto inherited = environment.get("TORCHELASTIC_RESTART_COUNT").value_or("0");
  const auto attempt = environment.get("LOCKSTEP_RESTART_COUNT").value_or(inherited);
  plan.base = fmt::format("lockstep/{}/{}", options.group_name, attempt);
}

}  // namespace

Result<RendezvousPlan> make_plan(const RendezvousOptions& options) {
  RendezvousPlan plan;
  const std::string_view url = options.init_method;
  if (url == "env://") {
    LOCKSTEP_RETURN_IF_ERROR(plan_env(options, plan));
  } else if (url.starts_with("tcp://") || url.starts_with("file://")) {
    LOCKSTEP_RETURN_IF_ERROR(plan_url(options, plan));
  } else {
    return invalid(
        fmt::format("init_method: expected env://, tcp://host:port or file:///path, found '{}'", options.init_method));
  }
  finish(options, plan);
  return plan;
}

Result<RendezvousPlan> make_plan_for_store(const RendezvousOptions& options) {
  RendezvousPlan plan;
  Claims claims;
  claim_arguments(options, claims);
  std::vector<std::string> missing;
  LOCKSTEP_RETURN_IF_ERROR(settle(claims, plan, missing));
  if (!missing.empty()) return invalid("a rendezvous on a store of one's own needs the arguments rank and world_size");
  plan.method = Method::kGivenStore;
  finish(options, plan);
  return plan;
}

}  // namespace lockstep::comm
