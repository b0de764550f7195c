// How a HierarchicalGroup is made, and how it ends.
#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cstring>
#include <set>
#include <thread>

#include "engine/core/drain_timeout.h"
#include "engine/core/error_text.h"
#include "hierarchical_group.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "net/network_interface.h"
#include "net/ucx/ucx_transport.h"
#include "shm/hand_over.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kTokenBytes = 16;
const std::string kRefusal = "refused ";
constexpr auto kAddressGrace = std::chrono::seconds(2);
constexpr const char* kBefore = "before";  // the local groups
constexpr const char* kAfter = "after";

// The interface by which other machines reach this one: the one that leads to the store, which every rank has reached;
// else the one that leads to MASTER_ADDR.
NetworkInterface find_interface(const Store& store) {
  if (const std::string address = store.local_address(); !address.empty()) {
    if (auto found = interface_with_address(address); found.ok()) return found.value();
  }
  if (const auto master = Environment::of_process().get("MASTER_ADDR")) {
    auto found = interface_towards(*master);
    if (found.ok()) return found.value();
    log::warning(
        fmt::format("no interface towards MASTER_ADDR {}: {}; UCX chooses one", *master, found.status().message()));
  }
  return {};
}

// Admits the addresses of the other machines. This machine's own addresses are admitted only if another "machine" of
// the group shares them (by LOCKSTEP_MACHINE, or as another user), because any user here can use them.
Admitted admitted_to(const Topology& topology, int rank) {
  const std::vector<std::string>& own = topology.member(rank).addresses;
  std::set<std::string> all;  // the ranks of a machine publish the same addresses
  Admitted admitted;
  for (int other = 0; other < topology.world(); ++other) {
    if (topology.machine_of(other) == topology.machine_of(rank)) continue;
    const std::vector<std::string>& its = topology.member(other).addresses;
    admitted.loopback = admitted.loopback || its == own;
    all.insert(its.begin(), its.end());
  }
  for (const std::string& address : own) {
    if (!admitted.loopback) all.erase(address);  // an address that every machine has, such as that of a bridge
  }
  admitted.addresses.assign(all.begin(), all.end());
  return admitted;
}

// Why a rank has no address, if this was published in its place.
Status refusal_in(const Bytes& published) {
  if (!published.starts_with(kRefusal)) return {};
  return status_from(std::string_view(published).substr(kRefusal.size()));
}

Result<std::string> random_token() {
  std::array<char, kTokenBytes> token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return Status::from_errno("getrandom", errno);
  return std::string(token.data(), token.size());
}

}  // namespace

Result<std::shared_ptr<HierarchicalGroup>> HierarchicalGroup::create(const std::shared_ptr<Store>& store,
                                                                     const CommunicatorOptions& options,
                                                                     Topology topology) {
  std::shared_ptr<HierarchicalGroup> group(new HierarchicalGroup(options, std::move(topology)), LeakInForks());
  const Status opened = group->open(store, Deadline::after(options.timeout));
  if (opened.ok()) return group;
  // Published instead of the address, for the ranks that wait for it.
  if (group->token_.empty()) (void)store->set(group->address_key(options.rank), kRefusal + to_text(opened));
  const Status failed = opened.with_context(fmt::format("it spans {} machines", group->topology_.machines()));
  group->give_up(failed.with_context(fmt::format("{} cannot join group '{}'", group->me(), options.name)).message());
  return failed;
}

// For other ranks the group may be complete already, so they must be told.
void HierarchicalGroup::give_up(const std::string& why) {
  MutexLock lock(mutex_);
  if (mailbox_ != nullptr) return static_cast<void>(break_group(ErrorCode::kPeerFailed, why));
  for (const auto& local : {before_, after_}) {
    if (local != nullptr) local->waiting().abort(ErrorCode::kPeerFailed, why);
  }
}

std::string HierarchicalGroup::address_key(int rank) const {
  return fmt::format("lockstep/{}/address/{}", name_, rank);
}

std::string HierarchicalGroup::local_name(int machine, const char* what) const {
  return fmt::format("{}@{}/{}", name_, machine, what);
}

std::vector<std::string> HierarchicalGroup::meeting_keys() const {
  std::vector<std::string> keys;
  keys.reserve(world_size());
  for (int rank = 0; rank < world_size(); ++rank) keys.push_back(address_key(rank));
  for (int machine = 0; machine < topology_.machines(); ++machine) {
    for (const char* what : {kBefore, kAfter}) keys.push_back(hand_over_key(local_name(machine, what)));
  }
  return keys;
}

Status HierarchicalGroup::open(const std::shared_ptr<Store>& store, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(before_, open_local(store, kBefore, deadline));
  arena_ = before_->memory().shared_arena();
  LOCKSTEP_ASSIGN_OR_RETURN(after_, open_local(store, kAfter, deadline));
  LOCKSTEP_RETURN_IF_ERROR(share_boards(deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(transport_,
                            open_ucx(find_interface(*store), admitted_to(topology_, rank_),
                                     [this](const ActiveMessage& message) { return on_active_message(message); }));
  LOCKSTEP_RETURN_IF_ERROR(exchange_addresses(store, deadline));
  std::uint64_t tag_key = 0;
  std::memcpy(&tag_key, token_.data(), sizeof tag_key);
  context_ = std::make_unique<StepContext>(StepContext{topology_, rank_, *transport_, arena_, roster_, tag_key});
  {
    MutexLock lock(mutex_);
    mailbox_ = std::make_unique<HierarchicalMailbox>(*context_, *before_, token_);
  }
  return greet(deadline);
}

Result<std::shared_ptr<LocalGroup>> HierarchicalGroup::open_local(const std::shared_ptr<Store>& store, const char* what,
                                                                  Deadline deadline) const {
  const int machine = topology_.machine_of(rank_);
  CommunicatorOptions local;
  local.rank = topology_.index_of(rank_);
  local.world_size = topology_.size(machine);
  local.name = local_name(machine, what);
  local.timeout = timeout_;
  local.arena = arena_;
  for (const int rank : topology_.ranks(machine)) local.world_ranks.push_back(roster_.number(rank));
  return LocalGroup::create(*store, local, deadline);
}

// Each rank publishes a token and its address in the store, which only members of the job can read. Rank 0's token is
// the group's.
Status HierarchicalGroup::exchange_addresses(const std::shared_ptr<Store>& store, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string token, random_token());
  const std::string address = transport_->address();
  if (address.empty()) return {ErrorCode::kUnavailable, transport_->describe() + " has no address for others"};
  LOCKSTEP_RETURN_IF_ERROR(store->set(address_key(rank_), token + address));
  std::vector<std::string> keys;
  keys.reserve(world_size());
  for (int rank = 0; rank < world_size(); ++rank) keys.push_back(address_key(rank));
  // A little longer than the ranks of another machine wait for one another, because they know who is missing there.
  auto all = store->multi_get(keys, Deadline::after(deadline.remaining() + kAddressGrace));
  if (all.status().code() == ErrorCode::kTimeout) return who_did_not_publish(*store, all.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Bytes> published, std::move(all));
  for (int rank = 0; rank < world_size(); ++rank) {
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published[rank]).with_context(roster_.name(rank)));
    if (published[rank].size() <= kTokenBytes) {
      return {ErrorCode::kCorrupt, fmt::format("what {} published is no address", roster_.name(rank))};
    }
    if (topology_.machine_of(rank) != topology_.machine_of(rank_))
      transport_->introduce(rank, published[rank].substr(kTokenBytes));
  }
  token_ = published[0].substr(0, kTokenBytes);
  return {};
}

Status HierarchicalGroup::who_did_not_publish(Store& store, const Status& why) const {
  std::vector<int> silent;
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::array<std::string, 1> key{address_key(rank)};
    const auto there = store.check(key);
    if (!there.ok()) return why;
    if (!there.value()) {
      silent.push_back(rank);
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes published, store.get(key[0], Deadline::after(kAddressGrace)));
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published).with_context(roster_.name(rank)));
  }
  if (silent.empty()) return why;
  return {why.code(), fmt::format("{} did not say where to reach them", ranks_with_hosts(topology_, roster_, silent))};
}

Status HierarchicalGroup::share_boards(Deadline deadline) {
  const std::size_t bytes = world_size() * sizeof(std::uint64_t);
  LOCKSTEP_RETURN_IF_ERROR(board_staging_.allocate(arena_, bytes));
  std::memset(board_staging_.data(), 0, bytes);
  const std::uint64_t mine = arena_->offset_of(board_staging_.data()) + 1;
  const int locals = topology_.size(topology_.machine_of(rank_));
  std::vector<std::uint64_t> offsets(locals);
  AllGather args;
  args.input = {&mine, sizeof mine};
  for (std::uint64_t& offset : offsets) args.outputs.push_back({&offset, sizeof offset});
  LOCKSTEP_RETURN_IF_ERROR(before_->run(make_request(args), deadline));
  for (int index = 0; index < locals; ++index) {
    LOCKSTEP_RETURN_IF_ERROR(before_->memory().reach(index, offsets[index]));
    boards_.push_back(reinterpret_cast<Board>(before_->memory().resolve(index, offsets[index])));
  }
  return {};
}

// Exchanges a hello with every neighbour, so that an unreachable machine is found now, and named. This rank's hellos
// must have left too: perhaps no call progresses this group for a while after it is made.
Status HierarchicalGroup::greet(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    tell_neighbours(ActiveMessageHeader::Type::kHello, 0, "");
  }
  std::vector<int> silent;
  while (true) {
    {
      MutexLock lock(mutex_);
      progress_all();
      silent.clear();
      bool lost = false;
      for (int rank = 0; rank < world_size(); ++rank) {
        if (!topology_.are_neighbours(rank_, rank) || greeted_[rank]) continue;
        silent.push_back(rank);
        lost = lost || transport_->is_lost(rank);
      }
      if (silent.empty() && outgoing_.empty()) {
        transport_->close_to_programs();
        return {};
      }
      if (!break_status_.ok()) return break_status_;
      if (lost || deadline.expired()) break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const bool all_spoke = silent.empty();
  for (int rank = 0; all_spoke && rank < world_size(); ++rank) {
    if (topology_.are_neighbours(rank_, rank)) silent.push_back(rank);
  }
  return {deadline.expired() ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
          fmt::format("no connection between {} (on {}) and {} through {}. Is that the interface that "
                      "connects the machines (UCX_NET_DEVICES chooses another one), and does a firewall allow TCP "
                      "connections between them on any port, and leave their addresses as they are?",
                      me(), topology_.member(rank_).host, ranks_with_hosts(topology_, roster_, silent),
                      transport_->describe())};
}

// Operations under way get a moment to finish. Then the ranks that could still wait for this one are told.
void HierarchicalGroup::close() {
  GroupRegistry::of_process().remove(*this);
  if (transport_ == nullptr || before_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    DrainTimeout drain;
    while (mailbox_ != nullptr && break_status_.ok() && (pending_ > 0 || !transfers_.empty()) && drain.may_wait())
      progress_all();
    closed_ = true;
    // Other ranks of this machine may have broken the group without this rank noticing it so far.
    if (mailbox_ != nullptr && break_status_.ok()) (void)check_local_groups();
    const std::string cause = before_->waiting().known_cause(topology_.index_of(rank_));
    if (mailbox_ != nullptr && break_status_.ok() && (pending_ > 0 || !transfers_.empty())) {
      const std::string what = pending_ > 0 ? describe(*(active_.empty() ? queue_.front() : active_.front().operation))
                                            : comm::describe(transfers_.front()->transfer, names());
      (void)break_group(ErrorCode::kPeerFailed,
                        caused(cause, fmt::format("{} left the group with {} under way", me(), what)));
    } else if (break_status_.ok()) {
      tell_neighbours(ActiveMessageHeader::Type::kGoodbye, 0, cause);
      transport_->close(/*gently=*/true, drain.remaining());
    }
  }
  before_->close();
  if (after_ != nullptr) after_->close();
}

}  // namespace lockstep::comm
