// How a sharded optimizer outlives ranks: who has which state, and how the ranks of a new world get their shares.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "state_copies.h"
#include "zero_redundancy_optimizer_impl.h"

namespace lockstep {

// What the ranks of the present world have, as each of them says.
struct ShardedOptimizer::Impl::Holders {
  std::vector<std::string> ranks;  // a character for each parameter: 1, if the rank has its state
  bool is_new = true;              // no rank has taken a step or loaded a state: there is nothing to send
  bool is_replaced = false;        // the world was formed anew since the state was divided

  bool has(std::size_t rank, std::size_t parameter) const { return ranks[rank][parameter] == '1'; }
  // The lowest rank that has the state; -1: none.
  int first(std::size_t parameter) const {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (has(rank, parameter)) return static_cast<int>(rank);
    }
    return -1;
  }
};

std::string ShardedOptimizer::Impl::why_not() const {
  if (options_.copies < 2) {
    return "a rank that dies takes the state of its share with it. Set ZeroRedundancyOptions::copies to 2, so that the "
           "next rank keeps this state too; or restart such a training from a checkpoint (lockstep run "
           "--max-restarts)";
  }
  if (options_.process_group != nullptr) return "its group is not the world: leave out process_group";
  if (!backend().device().is_cpu()) return "its parameters are not on the CPU";
  return {};
}

std::string ShardedOptimizer::Impl::description() const {
  TORCH_CHECK_VALUE(!has_new_parameters(whole_.param_groups()),
                    "ZeroRedundancyOptimizer: parameters were added or replaced since it was made or last stepped; for "
                    "ElasticTraining give all groups to the constructor");
  return own_lines(whole_.param_groups(), factory_, options_);
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::Impl::without_parameters() const {
  return make(groups_of(whole_.param_groups(), [](const torch::Tensor&) { return false; }));
}

void ShardedOptimizer::Impl::take_options(const torch::optim::Optimizer& from) {
  for (std::size_t group = 0; group < from.param_groups().size(); ++group) {
    whole_.param_groups().at(group).set_options(from.param_groups()[group].options().clone());
  }
}

void ShardedOptimizer::Impl::set_around(Around around) {
  around_ = std::move(around);
  has_stepped_ = false;
}

void ShardedOptimizer::Impl::begin_step(bool has_closure) {
  is_new_ = false;
  if (!around_) return;
  TORCH_CHECK_VALUE(!has_closure,
                    "ZeroRedundancyOptimizer: step() takes no closure under ElasticTraining, because a "
                    "closure may communicate in the middle of the step");
  TORCH_CHECK_VALUE(!std::exchange(has_stepped_, true),
                    "ZeroRedundancyOptimizer: expected one step() in each update of an ElasticTraining, found a second "
                    "one: after a death no rank would have the values of the first");
  TORCH_CHECK_VALUE(!has_new_parameters(whole_.param_groups()),
                    "ZeroRedundancyOptimizer: expected the parameters of the last step, found others: under "
                    "ElasticTraining parameters cannot be added or replaced");
}

std::vector<torch::Tensor> ShardedOptimizer::Impl::all_parameters() const {
  std::vector<torch::Tensor> all;
  for (const std::vector<torch::Tensor>& group : known_) all.insert(all.end(), group.begin(), group.end());
  return all;
}

ShardedOptimizer::Impl::Holders ShardedOptimizer::Impl::find_holders() const {
  std::string mine;
  for (const torch::Tensor& parameter : all_parameters())
    mine.push_back(held_.contains(parameter.unsafeGetTensorImpl()) ? '1' : '0');
  Holders holders;
  for (auto& [has, is_new, is_replaced] : all_gather_object(std::tuple(mine, is_new_, !backend().replaced().ok()))) {
    holders.ranks.push_back(std::move(has));
    holders.is_new = holders.is_new && is_new;
    holders.is_replaced = holders.is_replaced || is_replaced;
  }
  return holders;
}

std::string ShardedOptimizer::Impl::lost() {
  const Holders holders = find_holders();
  if (holders.is_new) return {};
  const std::vector<torch::Tensor> all = all_parameters();
  std::size_t missing = 0;
  std::size_t first = 0;
  for (std::size_t i = all.size(); i-- > 0;) {
    if (holders.first(i) >= 0) continue;
    ++missing;
    first = i;
  }
  if (missing == 0) return {};
  return fmt::format("the state of {} of the optimizer's {} parameters (the first: number {}, of {} elements)", missing,
                     all.size(), first, all[first].numel());
}

void ShardedOptimizer::Impl::share_values() {
  const Holders holders = find_holders();
  std::vector<std::vector<torch::Tensor>> shares(holders.ranks.size());
  const std::vector<torch::Tensor> all = all_parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_sent(all[i])) shares.at(static_cast<std::size_t>(holders.first(i))).push_back(all[i]);
  }
  const nn_detail::DeviceBackend world(nullptr, backend().device());
  if (shares.size() > 1) nn_detail::ShardExchange(world, channel_->exchange.bytes_at_once()).run(shares);
}

// Whether `rank` is to hold parameter number `index`, and does not have its state.
bool ShardedOptimizer::Impl::lacks(const Holders& holders, int rank, const torch::Tensor& parameter,
                                   std::size_t index) const {
  return holds(rank, owner_of(parameter), static_cast<int>(holders.ranks.size())) &&
         !holders.has(static_cast<std::size_t>(rank), index);
}

void ShardedOptimizer::Impl::regain() {
  const Holders holders = find_holders();
  if (holders.is_replaced) {
    channel_ = std::make_unique<Channel>(options_, backend().device());
    owners_.clear();
    load_.assign(holders.ranks.size(), 0);
    assign_new(whole_.param_groups());
  }
  const bool has_received = !holders.is_new && receive_missing(holders);
  if (!holders.is_replaced && !holders.is_new && !has_received) return;  // the usual begin of a further run()
  barrier();  // the others have what they need of this rank's state
  keep_new_share(holders.is_new);
}

// The ranks that have state send it one after another: each rank sends what others lack and no rank before it has.
// Returns whether any rank lacks something.
bool ShardedOptimizer::Impl::receive_missing(const Holders& holders) {
  const std::vector<torch::Tensor> all = all_parameters();
  const auto size = static_cast<int>(holders.ranks.size());
  bool any = false;
  for (int source = 0; source < size; ++source) {
    std::unordered_set<const void*> sent, wanted;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (holders.first(i) != source) continue;
      for (int rank = 0; rank < size; ++rank) {
        if (lacks(holders, rank, all[i], i)) sent.insert(all[i].unsafeGetTensorImpl());
      }
      if (lacks(holders, backend().rank(), all[i], i)) wanted.insert(all[i].unsafeGetTensorImpl());
    }
    if (sent.empty()) continue;
    any = true;
    const Groups groups = groups_of(whole_.param_groups(), [&](const torch::Tensor& parameter) {
      return sent.contains(parameter.unsafeGetTensorImpl());
    });
    const bool is_mine = source == backend().rank();
    const std::string bytes = broadcast_bytes(is_mine ? nn_detail::optimizer_bytes(*part_of(groups)) : "", source);
    if (wanted.empty()) continue;
    const auto part = make(groups);
    nn_detail::read_optimizer(bytes, *part, backend().device());
    for (const torch::Tensor& parameter : all) {
      void* const key = parameter.unsafeGetTensorImpl();
      if (!wanted.contains(key)) continue;
      inner_->state().erase(key);  // this rank may have the state of another step
      const auto found = part->state().find(key);
      if (found != part->state().end()) inner_->state()[key] = std::move(found->second);
    }
    held_.insert(wanted.begin(), wanted.end());
  }
  return any;
}

// This rank has all state of its new share, and drops the rest.
void ShardedOptimizer::Impl::keep_new_share(bool is_new) {
  auto share = make(groups_of(whole_.param_groups(), [&](const torch::Tensor& one) { return holds(owner_of(one)); }));
  if (!is_new) share->state().clear();
  held_.clear();
  note_held(*share);
  for (auto& [parameter, state] : inner_->state()) {
    if (!is_new && held_.contains(parameter)) share->state()[parameter] = std::move(state);
  }
  inner_ = std::move(share);
  is_new_ = is_new_ && is_new;
}

}  // namespace lockstep
