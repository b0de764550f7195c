// How a HierarchicalGroup is made, and how it ends.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "address_exchange.h"
#include "engine/core/drain_timeout.h"
#include "engine/core/error_text.h"
#include "engine/core/group_registry.h"
#include "hierarchical_group.h"
#include "open_transport.h"

namespace lockstep::comm {

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
        const std::string how = fmt::format("{} left the group with {} under way", me(), what_is_under_way());
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
