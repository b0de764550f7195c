#include "call_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lockstep::comm {

Result<CallBoard> CallBoard::share(LocalGroup& local, int group_size, Deadline deadline) {
  const GroupMemory& memory = local.memory();
  CallBoard board({}, memory.rank());
  const std::size_t bytes = group_size * sizeof(std::uint64_t);
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
  std::atomic<std::uint64_t>& place = rows_[own_][rank];
  if (place.load(std::memory_order_relaxed) < call) place.store(call, std::memory_order_relaxed);
}

std::uint64_t CallBoard::latest(int rank) const {
  std::uint64_t call = 0;
  for (const Row row : rows_) call = std::max(call, row[rank].load(std::memory_order_relaxed));
  return call;
}

std::string CallBoard::describe(int rank) const {
  const std::uint64_t call = latest(rank);
  if (call == 0) return "no call known";
  return fmt::format("last call {} #{}", to_string(kind_of(call)), sequence_of(call));
}

}  // namespace lockstep::comm
