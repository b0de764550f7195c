#include "lockstep/store/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/number_text.h"
#include "base/random.h"
#include "lockstep/base/log.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/init_method.h"
#include "store/membership/join_group.h"
#include "store/membership/refuse_rendezvous.h"
#include "store/membership/told_store.h"
#include "store/tcp/session.h"

namespace lockstep::comm {

// The connection to the store, and on the rank that serves it the store itself.
class RendezvousSession {
 public:
  explicit RendezvousSession(std::shared_ptr<Store> given) : store_(std::move(given)) {}
  explicit RendezvousSession(std::shared_ptr<TcpStore> client, std::unique_ptr<TcpStoreServer> server = nullptr)
      : server_(std::move(server)), client_(client), store_(std::move(client)) {}

  const std::shared_ptr<Store>& store() const { return store_; }
  bool serves() const { return server_ != nullptr; }
  void joined(std::string prefix, int rank, int world_size) {
    prefix_ = std::move(prefix);
    rank_ = rank;
    world_size_ = world_size;
  }

  // From joined() on: the store is to tell the others when this rank ends.
  Status leave_will(const TcpStoreOptions& server, Deadline deadline) {
    gone_list_ = prefix_ + "/gone";
    LOCKSTEP_ASSIGN_OR_RETURN(watched_, StoreSession::connect(server, deadline, /*interrupt_fd=*/-1));
    return watched_.leave_will(gone_list_, std::to_string(rank_), kSilence);
  }

  bool sees_ends() const { return !gone_list_.empty(); }
  Result<std::vector<int>> gone() const {
    std::vector<int> ranks;
    if (gone_list_.empty()) return ranks;
    LOCKSTEP_ASSIGN_OR_RETURN(const bool any, store_->check({&gone_list_, 1}));
    if (!any) return ranks;
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes count, store_->get(gone_list_, Deadline::after(kAnswerTime)));
    std::vector<std::string> keys;
    for (int number = 1; number <= number_from_text<int>(count).value_or(0); ++number) {
      keys.push_back(fmt::format("{}/{}", gone_list_, number));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const auto values, store_->multi_get(keys, Deadline::after(kAnswerTime)));
    for (const Bytes& value : values) ranks.push_back(number_from_text<int>(value).value_or(-1));
    return ranks;
  }

  Status release(std::chrono::milliseconds wait) {
    Status left;
    const std::string round = std::exchange(prefix_, {});
    if (!round.empty()) left = leave_group(*store_, round, rank_, Deadline::after(kLeaveTime));
    watched_ = StoreSession();
    const auto server = std::exchange(server_, nullptr);
    const bool deserted = server == nullptr || wait_for_others(*server, round, Deadline::after(wait));
    if (client_ != nullptr) client_->close();
    if (deserted) return left;
    return {ErrorCode::kTimeout, fmt::format("other ranks were still connected to the store at {} after {} ms; they "
                                             "lose it now",
                                             server->endpoint().text(), wait.count())};
  }

 private:
  // Until they have left or died. A rank that has left may already be connected again, to join the next world at this
  // address. It looks for the next world's store when it loses this one.
  bool wait_for_others(const TcpStoreServer& server, const std::string& round, Deadline deadline) const {
    for (;; std::this_thread::sleep_for(kLookEvery)) {
      if (server.num_clients() <= 1) return true;  // this rank's own
      if (!round.empty()) {
        const auto all = have_all_left(*store_, round, world_size_);
        if (all.ok() && all.value()) return true;
      }
      if (deadline.expired()) return false;
    }
  }

  static constexpr auto kLookEvery = std::chrono::milliseconds(1);
  // A store that hangs must not delay anybody who leaves. A store that is only slow still gets the message.
  static constexpr auto kLeaveTime = std::chrono::milliseconds(300);
  // The values are in the store.
  static constexpr auto kAnswerTime = std::chrono::seconds(5);
  // As long as connections of a TcpStore survive. A process that ends is seen at once all the same.
  static constexpr auto kSilence = std::chrono::seconds(60);
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<TcpStore> client_;  // the same object as store_, when this session made it
  std::shared_ptr<Store> store_;
  StoreSession watched_;   // the store sees this rank's end by it; not connected in a group of one machine
  std::string gone_list_;  // of ranks, in the store; empty: nobody left a will
  std::string prefix_;
  int rank_ = 0;
  int world_size_ = 1;
};

namespace {

using Method = RendezvousPlan::Method;
using SessionPtr = std::shared_ptr<RendezvousSession>;

// How long an address that is in use may take to become free, or to turn out to be this group's own store.
constexpr auto kAddressPatience = std::chrono::seconds(15);
constexpr std::chrono::nanoseconds kErrorPatience = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kLeastErrorPatience = std::chrono::seconds(1);
constexpr auto kProbeTimeout = std::chrono::seconds(3);

Deadline at_most(Deadline deadline, std::chrono::milliseconds limit) {
  return earlier(deadline, Deadline::after(limit));
}

// How long a rank keeps the store for others after an error: as long as it would have waited for them anyway, within
// limits.
Deadline after_error(std::chrono::nanoseconds time_left) {
  return Deadline::after(std::clamp(time_left, kLeastErrorPatience, kErrorPatience));
}

TcpStoreOptions client_options(const RendezvousPlan& plan, Endpoint server) {
  return {.server = std::move(server), .job_key = plan.job_key};
}

// Rank 0 could not listen at its address. When another rank 0 of this group serves there, go on as its client:
// join_group then reports both. A store of an earlier attempt that is about to close gets time to do so.
Result<SessionPtr> join_namesake(const RendezvousPlan& plan, const Status& listen_error, Deadline& patience) {
  auto client = TcpStore::connect(client_options(plan, plan.endpoint), at_most(patience, kProbeTimeout));
  if (!client.ok()) return listen_error;
  LOCKSTEP_ASSIGN_OR_RETURN(const bool namesake, has_joined(*client.value(), plan.base, plan.rank));
  if (namesake) return std::make_shared<RendezvousSession>(std::move(client).value());
  if (patience.expired()) return listen_error.with_context("another job's store is there");
  return SessionPtr();
}

Result<SessionPtr> serve(const RendezvousPlan& plan, Deadline deadline) {
  Deadline patience = at_most(deadline, kAddressPatience);
  while (true) {
    TcpStoreServerOptions options;
    options.listen_at = plan.endpoint;
    options.job_key = plan.job_key;
    auto server = TcpStoreServer::start(std::move(options));
    if (server.ok()) {
      const Endpoint endpoint = server.value()->endpoint();
      LOCKSTEP_ASSIGN_OR_RETURN(auto client, TcpStore::connect(client_options(plan, endpoint), deadline));
      return std::make_shared<RendezvousSession>(std::move(client), std::move(server).value());
    }
    if (server.status().code() != ErrorCode::kUnavailable) return server.status();
    LOCKSTEP_ASSIGN_OR_RETURN(auto session, join_namesake(plan, server.status(), patience));
    if (session != nullptr) return session;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<SessionPtr> open_session(const RendezvousPlan& plan, Deadline deadline) {
  if (plan.method == Method::kAlone) return std::make_shared<RendezvousSession>(std::make_shared<HashStore>());
  if (plan.method == Method::kFile) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto store, FileStore::open(plan.path));
    return std::make_shared<RendezvousSession>(std::move(store));
  }
  if (plan.serves) return serve(plan, deadline);
  LOCKSTEP_ASSIGN_OR_RETURN(auto client, TcpStore::connect(client_options(plan, plan.endpoint), deadline));
  return std::make_shared<RendezvousSession>(std::move(client));
}

// Until all ranks have left a round that will not be a group.
void wait_until_left(Store& store, const std::string& prefix, int world_size, Deadline deadline) {
  for (; !deadline.expired(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const auto all = have_all_left(store, prefix, world_size);
    if (!all.ok() || all.value()) return;
  }
}

// A rank that comes later finds the reason in the store only while that is there.
void let_others_learn(Store& store, const RendezvousPlan& plan, Deadline patience) {
  const auto round = round_of(store, plan.base, plan.rank);
  if (round.ok()) wait_until_left(store, round.value(), plan.world_size, patience);
}

bool spans_machines(const std::vector<Member>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.machine != members.front().machine; });
}

Result<Rendezvous> join_on(SessionPtr session, const RendezvousPlan& plan, Deadline deadline) {
  auto joined = join_group(*session->store(), plan.base, plan.rank, plan.world_size, deadline);
  if (!joined.ok()) {
    const Deadline patience = after_error(deadline.remaining());
    if (session->serves() && joined.status().code() == ErrorCode::kMismatch)
      let_others_learn(*session->store(), plan, patience);
    static_cast<void>(session->release(patience.remaining_ms()));  // the first error is the one to report
    return joined.status().with_context(fmt::format("rendezvous of rank {} of {}", plan.rank, plan.world_size));
  }
  session->joined(joined->prefix, plan.rank, plan.world_size);
  if (plan.method == Method::kTcp && spans_machines(joined->members)) {
    const Status will = session->leave_will(client_options(plan, plan.endpoint), at_most(deadline, kProbeTimeout));
    if (!will.ok()) {
      log::warning(fmt::format("rank {}: the store will not tell the others when this rank ends: {}", plan.rank,
                               will.message()));
    }
  }
  auto store = std::make_shared<PrefixStore>(joined->prefix + "/store", session->store());
  return Rendezvous{std::move(store), plan.rank, plan.world_size, std::move(joined->members), std::move(session)};
}

// Whether this may be the store of the world that this rank has left, about to close: the rank has joined there before.
bool may_be_closing(const RendezvousSession& session, const RendezvousPlan& plan) {
  if (plan.serves || plan.method != Method::kTcp) return false;
  const auto joined = has_joined(*session.store(), plan.base, plan.rank);
  return joined.ok() ? joined.value() : joined.status().code() == ErrorCode::kUnavailable;
}

// Joins on the next world's store instead, if the first one closes before all ranks have joined.
Result<Rendezvous> join_next_world(const RendezvousPlan& plan, Result<Rendezvous> first, Deadline deadline) {
  if (first.ok() || first.status().code() != ErrorCode::kUnavailable) return first;
  auto session = open_session(plan, at_most(deadline, kAddressPatience));
  if (!session.ok()) return first;
  return join_on(std::move(session).value(), plan, deadline);
}

}  // namespace

Status Rendezvous::release(std::chrono::milliseconds wait) {
  return session == nullptr ? Status() : session->release(wait);
}

bool Rendezvous::sees_ends() const {
  return session != nullptr && session->sees_ends();
}

Result<std::vector<int>> Rendezvous::gone() const {
  return session == nullptr ? Result<std::vector<int>>(std::vector<int>()) : session->gone();
}

Result<Rendezvous> rendezvous(const RendezvousOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto plan, make_plan(options));
  // A rank outside the world still tells the others, but does not wait long for them.
  const bool outside = plan.rank >= plan.world_size;
  const Status impossible(ErrorCode::kMismatch, fmt::format("rank {} is outside the world of {}: ranks go from 0 to {}",
                                                            plan.rank, plan.world_size, plan.world_size - 1));
  if (outside && plan.world_size == 1) return impossible;
  auto session = open_session(plan, outside ? at_most(deadline, kAddressPatience) : deadline);
  if (!session.ok() && outside) return impossible;
  if (!session.ok()) {
    return session.status().with_context(fmt::format("rendezvous of rank {} of {}", plan.rank, plan.world_size));
  }
  const bool closing = may_be_closing(*session.value(), plan);
  auto joined = join_on(std::move(session).value(), plan, deadline);
  return closing ? join_next_world(plan, std::move(joined), deadline) : joined;
}

Result<Rendezvous> rendezvous(const RendezvousOptions& options, std::shared_ptr<Store> store) {
  const Deadline deadline = Deadline::after(options.timeout);
  if (store == nullptr) return Status(ErrorCode::kInvalidArgument, "rendezvous: expected a store, found none");
  LOCKSTEP_ASSIGN_OR_RETURN(const auto plan, make_plan_for_store(options));
  return join_on(std::make_shared<RendezvousSession>(std::move(store)), plan, deadline);
}

Result<ToldStore> ToldStore::serve(const std::string& address, Deadline deadline) {
  constexpr std::size_t kKeyBytes = 16;  // 128 bits cannot be guessed, and fit into a short message
  ToldStore store;
  LOCKSTEP_ASSIGN_OR_RETURN(store.job_key, random_digits(kKeyBytes));
  TcpStoreServerOptions options;
  options.listen_at = {address, 0};
  options.job_key = store.job_key;
  LOCKSTEP_ASSIGN_OR_RETURN(store.server, TcpStoreServer::start(std::move(options)));
  store.endpoint = store.server->endpoint();
  LOCKSTEP_ASSIGN_OR_RETURN(store.client,
                            TcpStore::connect({.server = store.endpoint, .job_key = store.job_key}, deadline));
  return store;
}

Result<ToldStore> ToldStore::connect(Endpoint endpoint, std::string job_key, Deadline deadline) {
  ToldStore store{std::move(endpoint), std::move(job_key)};
  LOCKSTEP_ASSIGN_OR_RETURN(store.client,
                            TcpStore::connect({.server = store.endpoint, .job_key = store.job_key}, deadline));
  return store;
}

Result<Rendezvous> rendezvous_at(ToldStore store, int rank, int world_size, const std::string& group_name,
                                 Deadline deadline) {
  RendezvousOptions options;
  options.init_method = "tcp://" + store.endpoint.text();
  options.rank = rank;
  options.world_size = world_size;
  options.job_key = store.job_key;
  options.group_name = group_name;
  options.environment = Environment();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto plan, make_plan(options));
  return join_on(std::make_shared<RendezvousSession>(std::move(store.client), std::move(store.server)), plan, deadline);
}

void refuse_rendezvous(const RendezvousOptions& options, const std::shared_ptr<Store>& store,
                       const std::string& reason) {
  const Deadline patience =
      after_error(options.timeout > std::chrono::milliseconds::zero() ? options.timeout : kErrorPatience);
  const auto found = store == nullptr ? make_plan(options) : make_plan_for_store(options);
  if (!found.ok()) return;
  const RendezvousPlan& plan = found.value();
  if (plan.world_size == 1 || plan.rank >= plan.world_size) return;
  const Result<SessionPtr> session =
      store == nullptr ? open_session(plan, patience) : Result<SessionPtr>(std::make_shared<RendezvousSession>(store));
  if (!session.ok()) return;
  Store& reached = *session.value()->store();
  const Status why(ErrorCode::kMismatch, fmt::format("rank {} could not take part: {}", plan.rank, reason));
  const auto round = refuse_group(reached, plan.base, plan.rank, why);
  const bool goes_with_this_rank = plan.serves || plan.method == Method::kFile;
  if (round.ok() && goes_with_this_rank) wait_until_left(reached, round.value(), plan.world_size, patience);
  static_cast<void>(session.value()->release(patience.remaining_ms()));
}

}  // namespace lockstep::comm
