// How a HierarchicalGroup is made, and how it ends.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "engine/core/error_text.h"
#include "engine/core/group_registry.h"
#include "engine/core/timing.h"
#include "engine/core/topology.h"
#include "hierarchical_group.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/store/store.h"
#include "net/network_interface.h"
#include "net/transport.h"
#include "net/ucx/ucx_transport.h"
#include "store/membership/roster.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

// AddressExchange: how the ranks of a group that spans machines learn from the store where the others are. Only members
// of the job can read the store. Rank 0's token becomes the group's token.
class AddressExchange {
 public:
  AddressExchange(Store& store, const Topology& topology, const GroupNames& names)
      : store_(store), topology_(topology), names_(names) {}

  // Publishes the address of `rank`, and introduces the ranks of other machines to its transport. Returns the group's
  // token. Collective over the group. An error names the ranks that did not come.
  Result<std::string> run(int rank, Transport& transport, Deadline deadline) const;
  // Publishes why `rank` has no address. The ranks that wait for it then fail with this reason.
  void refuse(int rank, const Status& why) const;
  // What the ranks leave in the store.
  static std::vector<std::string> keys(const std::string& group, int group_size);

 private:
  Status introduce(int rank, const std::vector<Bytes>& published, Transport& transport) const;
  Status who_did_not_publish(const Status& why) const;

  Store& store_;
  const Topology& topology_;
  const GroupNames names_;
};

constexpr std::size_t kTokenBytes = 16;
// Follows the token: which records (Call, RankNews) this build sends to other machines.
const std::string kLayout = fmt::format("records 3 {:05};", sizeof(Call));
const std::string kRefusal = "refused ";
constexpr auto kAddressGrace = std::chrono::seconds(2);

std::string address_key(const std::string& group, int rank) {
  return fmt::format("lockstep/{}/address/{}", group, rank);
}

// Why a rank has no address, if this was published in its place.
Status refusal_in(const Bytes& published) {
  if (!published.starts_with(kRefusal)) return {};
  return status_from(std::string_view(published).substr(kRefusal.size()));
}

Result<std::string> random_token() {
  std::string token(kTokenBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(token))));
  return token;
}

std::vector<std::string> AddressExchange::keys(const std::string& group, int group_size) {
  std::vector<std::string> keys;
  keys.reserve(group_size);
  for (int rank = 0; rank < group_size; ++rank) keys.push_back(address_key(group, rank));
  return keys;
}

void AddressExchange::refuse(int rank, const Status& why) const {
  (void)store_.set(address_key(names_.group, rank), kRefusal + to_text(why));
}

Result<std::string> AddressExchange::run(int rank, Transport& transport, Deadline deadline) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string token, random_token());
  const std::string address = transport.address();
  if (address.empty()) return Status(ErrorCode::kUnavailable, transport.describe() + " has no address for others");
  LOCKSTEP_RETURN_IF_ERROR(store_.set(address_key(names_.group, rank), token + kLayout + address));
  // A little longer than the ranks of another machine wait for one another, because they know who is missing there.
  auto all =
      store_.multi_get(keys(names_.group, topology_.size()), Deadline::after(deadline.remaining() + kAddressGrace));
  if (all.status().code() == ErrorCode::kTimeout) return who_did_not_publish(all.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Bytes> published, std::move(all));
  LOCKSTEP_RETURN_IF_ERROR(introduce(rank, published, transport));
  return published[0].substr(0, kTokenBytes);
}

Status AddressExchange::introduce(int rank, const std::vector<Bytes>& published, Transport& transport) const {
  for (int other = 0; other < topology_.size(); ++other) {
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published[other]).with_context(names_.ranks.name(other)));
    if (published[other].size() <= kTokenBytes) {
      return {ErrorCode::kCorrupt, fmt::format("what {} published is no address", names_.ranks.name(other))};
    }
    if (published[other].compare(kTokenBytes, kLayout.size(), kLayout) != 0) {
      return {ErrorCode::kMismatch,
              fmt::format("{} (on {}) and {} (on {}) run different builds of this library, which cannot talk between "
                          "machines: run the same build on all machines",
                          names_.ranks.name(rank), topology_.member(rank).host, names_.ranks.name(other),
                          topology_.member(other).host)};
    }
    if (topology_.machine_of(other) != topology_.machine_of(rank))
      transport.introduce(other, published[other].substr(kTokenBytes + kLayout.size()));
  }
  return {};
}

Status AddressExchange::who_did_not_publish(const Status& why) const {
  std::vector<int> silent;
  for (int rank = 0; rank < topology_.size(); ++rank) {
    const std::array<std::string, 1> key{address_key(names_.group, rank)};
    const auto there = store_.check(key);
    if (!there.ok()) return why;
    if (!there.value()) {
      silent.push_back(rank);
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes published, store_.get(key[0], Deadline::after(kAddressGrace)));
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published).with_context(names_.ranks.name(rank)));
  }
  if (silent.empty()) return why;
  return {why.code(),
          fmt::format("{} did not say where to reach them", ranks_with_hosts(topology_, names_.ranks, silent))};
}

// The interface by which other machines reach this one: the one that leads to the store, which every rank has reached;
// else the one that leads to MASTER_ADDR.
NetworkInterface find_interface(const Store& store) {
  if (const std::string address = store.local_address(); !address.empty()) {
    if (auto found = interface_with_address(address); found.ok()) return found.value();
  }
  if (const auto master = Environment::of_process().get("MASTER_ADDR")) {
    auto found = interface_towards(*master);
    if (found.ok()) return found.value();
    static std::atomic<bool> said{false};  // by a group before
    if (said.exchange(true)) return {};
    log::warning(
        fmt::format("no interface towards MASTER_ADDR {}: {}; UCX chooses one", *master, found.status().message()));
  }
  return {};
}

// Opens the port of `rank`, on the interface that leads to the store if there is one.
Result<std::unique_ptr<Transport>> open_transport(const Store& store, const Topology& topology, int rank,
                                                  ActiveMessageHandler handler) {
  return open_ucx(find_interface(store), admitted_to(topology, rank), std::move(handler));
}

}  // namespace

Admitted admitted_to(const Topology& topology, int rank) {
  const std::vector<std::string>& own = topology.member(rank).addresses;
  std::set<std::string> all;  // the ranks of a machine publish the same addresses
  Admitted admitted;
  for (int other = 0; other < topology.size(); ++other) {
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

HierarchicalGroup::HierarchicalGroup(const CommunicatorOptions& options, Topology topology)
    : Group(options), topology_(std::move(topology)) {}

HierarchicalGroup::~HierarchicalGroup() {
  close();
}

Result<std::shared_ptr<HierarchicalGroup>> HierarchicalGroup::create(const std::shared_ptr<Store>& store,
                                                                     const CommunicatorOptions& options,
                                                                     Topology topology) {
  std::shared_ptr<HierarchicalGroup> group(new HierarchicalGroup(options, std::move(topology)), LeakInForks());
  const Status opened = group->open(store, options);
  if (opened.ok()) return group;
  const Status failed = opened.with_context(fmt::format("it spans {} machines", group->topology_.machines()));
  group->give_up(failed.with_context(fmt::format("{} cannot join group '{}'", group->me(), options.name)).message());
  return failed;
}

// For other ranks the group may be complete already, so they must be told.
void HierarchicalGroup::give_up(const std::string& why) {
  MutexLock lock(mutex_);
  if (parts_ != nullptr) return static_cast<void>(break_group({ErrorCode::kPeerFailed, why}));
  locals_.abort(ErrorCode::kPeerFailed, why);
}

std::vector<std::string> HierarchicalGroup::meeting_keys() const {
  std::vector<std::string> keys = AddressExchange::keys(name_, group_size());
  for (std::string& key : LocalGroups::keys(name_, topology_)) keys.push_back(std::move(key));
  return keys;
}

Status HierarchicalGroup::open(const std::shared_ptr<Store>& store, const CommunicatorOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  Result<std::string> token = connect(*store, options, deadline);
  if (!token.ok()) {
    AddressExchange(*store, topology_, names()).refuse(rank_, token.status());
    return token.status();
  }
  std::uint64_t tag_key = 0;
  std::memcpy(&tag_key, token->data(), sizeof tag_key);
  {
    MutexLock lock(mutex_);
    parts_ = std::make_unique<Parts>(
        GroupContext{topology_, rank_, *transport_, arena_, names(), token.value(), tag_key}, locals_, board_);
  }
  return greet(deadline);
}

Result<std::string> HierarchicalGroup::connect(Store& store, const CommunicatorOptions& options, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(locals_.open(store, options, topology_, deadline));
  arena_ = locals_.before().memory().shared_arena();
  LOCKSTEP_ASSIGN_OR_RETURN(board_, CallBoard::share(locals_.before(), group_size(), deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(transport_, open_transport(store, topology_, rank_, [this](ActiveMessage message) {
                              return on_active_message(std::move(message));
                            }));
  return AddressExchange(store, topology_, names()).run(rank_, *transport_, deadline);
}

// Exchanges a hello with every neighbour, so that an unreachable machine is found now, and named. This rank's hellos
// must have left too: perhaps no call progresses this group for a while after it is made.
Status HierarchicalGroup::greet(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    parts_->messages.tell_neighbours(ControlMessages::Type::kHello, "");
  }
  std::vector<int> silent;
  while (true) {
    {
      MutexLock lock(mutex_);
      progress_all();
      silent = parts_->peers.silent_neighbours();
      if (silent.empty() && parts_->messages.all_sent()) {
        transport_->close_to_programs();
        return {};
      }
      if (!break_status_.ok()) return break_status_;
      const bool lost = std::any_of(silent.begin(), silent.end(), [&](int rank) { return transport_->is_lost(rank); });
      if (lost || deadline.expired()) break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return no_connection(std::move(silent), deadline.expired());
}

// `silent`: the neighbours whose hello has not come; if all have come, those of this rank have not left.
Status HierarchicalGroup::no_connection(std::vector<int> silent, bool expired) const {
  const bool all_spoke = silent.empty();
  for (int rank = 0; all_spoke && rank < group_size(); ++rank) {
    if (topology_.are_neighbours(rank_, rank)) silent.push_back(rank);
  }
  return {expired ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
          fmt::format("no connection between {} (on {}) and {} through {}. Is that the interface that "
                      "connects the machines (UCX_NET_DEVICES chooses another one), and does a firewall allow TCP "
                      "connections between them on any port, and leave their addresses as they are?",
                      me(), topology_.member(rank_).host, ranks_with_hosts(topology_, roster_, silent),
                      transport_->describe())};
}

std::string HierarchicalGroup::what_is_under_way() const {
  const HierarchicalOperation* const collective = parts_->steps.oldest();
  return collective != nullptr ? collective->describe(parts_->context) : describe(parts_->mailbox.oldest(), names());
}

// Operations under way get a moment to finish. Then the ranks that could still wait for this one are told.
void HierarchicalGroup::close() {
  GroupRegistry::of_process().remove(*this);
  if (transport_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    DrainTimeout drain;
    while (parts_ != nullptr && break_status_.ok() && !parts_->idle() && drain.may_wait()) progress_all();
    closed_ = true;
    // Other ranks of this machine may have broken the group without this rank noticing it so far.
    if (parts_ != nullptr) (void)check_local_groups();
    if (parts_ != nullptr && break_status_.ok()) {
      const std::string cause = parts_->peers.known_cause(rank_);
      if (!parts_->idle()) {
        const std::string how = fmt::format("{} (pid {} on {}) left the group with {} under way", me(), getpid(),
                                            topology_.member(rank_).host, what_is_under_way());
        (void)break_group(loss(cause, how));
      } else {
        parts_->messages.tell_neighbours(ControlMessages::Type::kGoodbye, cause);
      }
    }
    if (break_status_.ok()) transport_->close(/*gently=*/true, drain.remaining());
  }
  locals_.close();
}

}  // namespace lockstep::comm
