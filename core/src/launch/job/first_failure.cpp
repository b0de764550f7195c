#include "launch/job/first_failure.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <memory>
#include <sstream>
#include <utility>

#include "lockstep/launch/newcomer.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/exchange_members.h"
#include "store/membership/join_group.h"
#include "store/membership/refuse_rendezvous.h"

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
  // A newcomer is rank 0 of a world of its own at first.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> replaced, replaced_rank(environment));
  return client->compare_set(kKey, "", std::to_string(replaced.value_or(rank))).status();
}

Status forget_first_failure(int rank, const std::string& store, const std::string& job_key) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> first, first_failure(store, job_key));
  if (first != rank) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto client, connect(store, job_key, kQueryTimeout));
  return client->delete_key(std::string(kKey)).status();
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

Status tell_of_early_ends(const JobSpec& job, std::vector<int>& ranks, const std::string& how) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto client, connect(job.store, job.job_key, kQueryTimeout));
  comm::RendezvousOptions options;
  options.world_size = job.world_size;
  options.environment = Environment({{"LOCKSTEP_RESTART_COUNT", std::to_string(job.restart_count)}});
  const std::string base = fmt::format("lockstep/{}/{}", options.group_name, job.restart_count);
  const std::vector<std::string> keys = comm::membership_keys(base + "/1");
  LOCKSTEP_ASSIGN_OR_RETURN(const bool some_wait, client->check({keys.data(), 1}));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool is_decided, client->check({keys.data() + 1, 1}));
  if (is_decided) ranks.clear();
  if (is_decided || !some_wait) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(const comm::Bytes lines, client->get(keys[0], Deadline::after(kQueryTimeout)));
  int rank = 0;
  int size = 0;
  // A program may leave ranks out of its group.
  if (!(std::istringstream(std::string(lines)) >> rank >> size) || size != job.world_size) {
    ranks.clear();
    return {};
  }
  for (const int ended : std::exchange(ranks, {})) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool joined, comm::has_joined(*client, base, ended));
    options.rank = ended;
    if (!joined) refuse_rendezvous(options, client, "it " + how);
  }
  return {};
}

}  // namespace lockstep::launch
