#include "shm/hand_over.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/fault_point.h"
#include "hand_over_side.h"
#include "known_memory.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

Result<Peer> make_peer(const Introduction& introduction, Fd arena, Fd process) {
  LOCKSTEP_ASSIGN_OR_RETURN(KnownArena known,
                            share_arena(std::move(arena), introduction.first_bytes, std::move(process)));
  return Peer{std::move(known.view), std::move(known.process), static_cast<int>(introduction.pid)};
}

}  // namespace

HandOverSide::HandOverSide(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline)
    : store_(store), arena_(arena), options_(options), deadline_(deadline) {
  self_.rank = options.rank;
  self_.group_size = options.group_size;
  self_.pid = getpid();
  self_.first_bytes = arena.first_bytes();
  introductions_.resize(options.group_size);
  descriptors_.resize(options.group_size);
}

Result<HandOver> HandOverSide::build(const Fd& control) {
  LOCKSTEP_FAULT_POINT("hand over: answered");
  HandOver result;
  LOCKSTEP_ASSIGN_OR_RETURN(result.control, share_control(control, options_.control_bytes));
  for (int rank = 0; rank < options_.group_size; ++rank) {
    Fd process = descriptors_[rank].size() > 1 ? std::move(descriptors_[rank][1]) : Fd();
    LOCKSTEP_ASSIGN_OR_RETURN(Peer peer,
                              make_peer(introductions_[rank], std::move(descriptors_[rank][0]), std::move(process)));
    result.peers.push_back(std::move(peer));
  }
  return result;
}

std::string address_key(const std::string& group) {
  return fmt::format("lockstep/{}/address", group);
}
std::string refused_key(const std::string& group) {
  return fmt::format("lockstep/{}/refused", group);
}
std::string hand_over_key(const std::string& group) {
  return address_key(group);
}

Status publish(Store& store, const std::string& group, const Address& address) {
  return store.set(address_key(group), {reinterpret_cast<const char*>(&address), sizeof(address)});
}

Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline) {
  return options.rank == 0 ? hand_over_as_host(store, arena, options, deadline)
                           : hand_over_as_guest(store, arena, options, deadline);
}

void refuse_hand_over(Store& store, const HandOverOptions& options, const Status& why) {
  (void)store.set(refused_key(options.name), to_text(why));
  if (options.rank != 0) return;
  Address nowhere;
  put(why, nowhere);
  (void)publish(store, options.name, nowhere);
}

}  // namespace lockstep::comm
