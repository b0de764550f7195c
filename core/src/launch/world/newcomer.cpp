#include "lockstep/launch/newcomer.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "launch/world/newcomers_part.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kAnswerTime{10};

Result<std::optional<int>> whole_number(const Environment& environment, const char* name) {
  const auto text = environment.get(name);
  if (!text) return std::optional<int>();
  const std::optional<int> number = number_from_text<int>(*text);
  if (number && *number >= 0) return number;
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("{}: expected a whole number from 0, found '{}'", name, *text));
}

}  // namespace

Result<std::optional<int>> replaced_rank(const Environment& environment) {
  return whole_number(environment, "LOCKSTEP_NEWCOMER");
}

Result<std::optional<int>> awaited_rank(const Environment& environment) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> rank, replaced_rank(environment));
  if (!rank) return rank;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, newcomers_store(environment));
  if (store == nullptr) return std::optional<int>();
  LOCKSTEP_ASSIGN_OR_RETURN(const bool has_joined, store->check(std::vector<std::string>{joined_key(*rank)}));
  return has_joined ? std::optional<int>() : rank;
}

Result<std::shared_ptr<comm::Store>> newcomers_store(const Environment& environment) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto most, whole_number(environment, "LOCKSTEP_MAX_NEWCOMERS"));
  const auto address = environment.get("LOCKSTEP_STORE");
  if (most.value_or(0) == 0 || !address) return std::shared_ptr<comm::Store>();
  return newcomers_part(*address, environment.get("LOCKSTEP_JOB_KEY").value_or(""), kAnswerTime);
}

Result<std::shared_ptr<comm::Store>> newcomers_part(const std::string& address, const std::string& job_key,
                                                    std::chrono::milliseconds timeout) {
  comm::TcpStoreOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.server, comm::parse_endpoint(address, "LOCKSTEP_STORE"));
  options.job_key = job_key;
  options.request_timeout = timeout;
  LOCKSTEP_ASSIGN_OR_RETURN(auto store, comm::TcpStore::connect(std::move(options), Deadline::after(timeout)));
  return std::shared_ptr<comm::Store>(std::make_shared<comm::PrefixStore>("newcomers", std::move(store)));
}

std::string nobody_comes_key(int rank) {
  return fmt::format("elastic/nobody_comes/{}", rank);
}

std::string joined_key(int rank) {
  return fmt::format("elastic/joined/{}", rank);
}

}  // namespace lockstep::launch
