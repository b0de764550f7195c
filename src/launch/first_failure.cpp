#include "launch/first_failure.h"

#include <charconv>
#include <chrono>
#include <memory>

#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {
namespace {

constexpr std::string_view kKey = "lockstep/first_failure";
// For each of the two requests of a failing rank: a launcher that hangs must not delay its exit.
constexpr std::chrono::milliseconds kClaimTimeout{300};
constexpr std::chrono::milliseconds kQueryTimeout{1000};

Result<std::shared_ptr<comm::TcpStore>> connect(const std::string& store, const std::string& job_key,
                                                std::chrono::milliseconds timeout) {
  comm::TcpStoreOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.server, comm::parse_endpoint(store, "LOCKSTEP_STORE"));
  options.job_key = job_key;
  options.request_timeout = timeout;
  return comm::TcpStore::connect(options, Deadline::after(timeout));
}

}  // namespace

Status claim_first_failure(int rank, const Environment& environment) {
  const auto store = environment.get("LOCKSTEP_STORE");
  if (!store) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto client,
                            connect(*store, environment.get("LOCKSTEP_JOB_KEY").value_or(""), kClaimTimeout));
  return client->compare_set(kKey, "", std::to_string(rank)).status();
}

Result<std::optional<int>> first_failure(const std::string& store, const std::string& job_key) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto client, connect(store, job_key, kQueryTimeout));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool claimed, client->check(std::vector<std::string>{std::string(kKey)}));
  if (!claimed) return std::optional<int>();
  LOCKSTEP_ASSIGN_OR_RETURN(const comm::Bytes text, client->get(kKey, Deadline::after(kQueryTimeout)));
  int rank = -1;
  std::from_chars(text.data(), text.data() + text.size(), rank);
  return rank < 0 ? std::optional<int>() : rank;
}

}  // namespace lockstep::launch
