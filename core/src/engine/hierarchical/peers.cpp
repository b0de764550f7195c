#include "peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/core/error_text.h"

namespace lockstep::comm {

Result<CallBoard> CallBoard::share(LocalGroup& local, int group_size, Deadline deadline) {
  const GroupMemory& memory = local.memory();
  CallBoard board({}, memory.rank());
  const std::size_t bytes = group_size * sizeof(Entry);
  LOCKSTEP_RETURN_IF_ERROR(board.memory_.allocate(memory.shared_arena(), bytes));
  std::memset(board.memory_.data(), 0, bytes);
  const Address mine = memory.address_in_arena(board.memory_.data());
  std::vector<Address> addresses(memory.size());
  AllGather args;
  args.input = {&mine, sizeof mine};
  for (Address& address : addresses) args.outputs.push_back({&address, sizeof address});
  LOCKSTEP_RETURN_IF_ERROR(local.run(make_request(args), deadline));
  for (int index = 0; index < memory.size(); ++index) {
    LOCKSTEP_RETURN_IF_ERROR(memory.reach(index, addresses[index]));
    board.rows_.push_back(reinterpret_cast<Row>(memory.resolve(index, addresses[index])));
  }
  return board;
}

void CallBoard::note(int rank, std::uint64_t call) const {
  std::atomic<std::uint64_t>& known = rows_[own_][rank].call;
  if (known.load(std::memory_order_relaxed) < call) known.store(call, std::memory_order_relaxed);
}

void CallBoard::note(int rank, std::uint64_t call, const SentPlace& place) const {
  Entry& entry = rows_[own_][rank];
  if (entry.has_place_of.load(std::memory_order_relaxed) < call) {
    const auto words = std::bit_cast<std::array<std::uint64_t, sizeof(SentPlace) / sizeof(std::uint64_t)>>(place);
    entry.has_place_of.store(0, std::memory_order_seq_cst);
    for (std::size_t i = 0; i < words.size(); ++i) entry.place[i].store(words[i], std::memory_order_release);
    entry.has_place_of.store(call, std::memory_order_release);
  }
  note(rank, call);
}

std::optional<SentPlace> CallBoard::place(int rank) const {
  const std::uint64_t call = latest(rank);
  if (call == 0) return std::nullopt;
  for (const Row row : rows_) {
    const Entry& entry = row[rank];
    if (entry.has_place_of.load(std::memory_order_acquire) != call) continue;
    std::array<std::uint64_t, sizeof(SentPlace) / sizeof(std::uint64_t)> words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = entry.place[i].load(std::memory_order_acquire);
    if (entry.has_place_of.load(std::memory_order_acquire) == call) return std::bit_cast<SentPlace>(words);
  }
  return std::nullopt;
}

std::uint64_t CallBoard::latest(int rank) const {
  std::uint64_t call = 0;
  for (const Row row : rows_) call = std::max(call, row[rank].call.load(std::memory_order_relaxed));
  return call;
}

void CallBoard::note_giving_up(int rank) const {
  rows_[own_][rank].gave_up.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                                  std::memory_order_relaxed);
}

bool CallBoard::gives_up(int rank, std::chrono::steady_clock::duration time) const {
  const auto since = (std::chrono::steady_clock::now() - time).time_since_epoch().count();
  return std::any_of(rows_.begin(), rows_.end(), [&](Row row) {
    const std::int64_t when = row[rank].gave_up.load(std::memory_order_relaxed);
    return when != 0 && when >= since;
  });
}

void Peers::forget_answers() {
  for (Told& told : told_) {
    told.answered = false;
    told.condition.clear();
  }
}

bool Peers::has_left(int rank) const {
  return context_.is_local(rank) ? local_.waiting().left(context_.topology.index_of(rank)) : told_[rank].left;
}

bool Peers::is_gone(int rank) const {
  if (rank == context_.rank) return false;
  if (!context_.is_local(rank)) return told_[rank].left || context_.transport.is_lost(rank);
  return local_.waiting().process_gone(context_.topology.index_of(rank)) || has_left(rank);
}

const char* Peers::how_gone(int rank) const {
  if (has_left(rank)) return "left the group";
  return context_.is_local(rank) ? local_peer(rank).how_gone() : "died, or the connection to it broke,";
}

std::string Peers::known_cause(int rank) const {
  return context_.is_local(rank) ? local_.waiting().known_cause(context_.topology.index_of(rank)) : told_[rank].cause;
}

std::vector<int> Peers::silent_neighbours() const {
  std::vector<int> silent;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (context_.topology.are_neighbours(context_.rank, rank) && !told_[rank].greeted) silent.push_back(rank);
  }
  return silent;
}

std::string Peers::condition(int rank) const {
  return context_.is_local(rank) ? condition_of(*local_peer(rank).process) : told_[rank].condition;
}

std::string Peers::waits_for(int rank) const {
  return context_.is_local(rank) ? local_.memory().wait_note(context_.topology.index_of(rank)).read()
                                 : told_[rank].waits_for;
}

std::string Peers::why_still(int rank) const {
  std::string known = condition(rank);
  const bool silent = context_.topology.are_neighbours(context_.rank, rank) && !told_[rank].answered;
  return known.empty() && silent ? "did not answer" : known;
}

std::vector<std::string> Peers::who_stands_still(const std::vector<int>& named) const {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < context_.size(); ++rank) {
    if (rank == context_.rank || std::find(named.begin(), named.end(), rank) != named.end()) continue;
    const std::string why = why_still(rank);
    if (why.empty()) continue;
    ranks.push_back(
        fmt::format("{} (on {}, {})", context_.names.ranks.number(rank), context_.topology.member(rank).host, why));
  }
  return ranks;
}

}  // namespace lockstep::comm
