// What both sides of a hand-over have in common: the messages, the record in the store, and HandOverSide.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "shm/hand_over.h"

namespace lockstep::comm {

using Token = std::array<std::byte, 16>;

// A rank's description of itself; the descriptors of its arena and its process are attached.
struct Introduction {
  std::int32_t rank = 0;
  std::int32_t group_size = 0;
  std::int64_t pid = 0;
  std::uint64_t first_bytes = 0;  // of its arena's first segment
};

// The only kind of message, in both directions, so that a refusal may come instead of any of them.
//
//   rank 0 -> rank   kGreeting       with rank 0's token
//   rank -> rank 0   kIntroduction   with the group's token; arena, pidfd
//   rank 0 -> rank   kControl        the control memory; then for each rank:
//   rank 0 -> rank   kPeer           arena, pidfd
//   rank -> rank 0   kReport         whether it has mapped everything
//   rank 0 -> rank   kVerdict        the group exists, or why not; a refusal may come earlier
struct HandOverMessage {
  static constexpr std::uint64_t kMagic = 0x4c4b5354'41524e43;  // "LKSTARNC": change it with control.h or StepRecord
  enum class Kind : std::int32_t { kNone, kGreeting, kIntroduction, kControl, kPeer, kReport, kVerdict };
  std::uint64_t magic = kMagic;
  Kind kind = Kind::kNone;
  std::int32_t code = 0;  // an ErrorCode
  Token token{};
  Introduction introduction{};
  std::array<char, 504> text{};
};

// The address of rank 0, or why it has none, as published in the store. The tokens prove that a rank has read this, and
// that rank 0 has written it.
struct HandOverAddress {
  std::array<char, 64> machine{};
  std::array<char, 64> host{};
  std::array<char, 48> socket{};
  Token greeting{};  // rank 0's
  Token token{};     // the others'
  std::int32_t code = 0;
  std::array<char, 500> text{};
};

void put(const Status& status, HandOverMessage& message);
void put(const Status& status, HandOverAddress& address);

Status send_message(int socket, const HandOverMessage& message, Deadline deadline,
                    std::span<const int> descriptors = {});
// Receives a message of this kind. Errors: the refusal that came instead; kMismatch for another kind; kIo with a
// complete message when this process has no room for the attached descriptors. A null `descriptors` drops them.
Status receive_message(int socket, HandOverMessage::Kind kind, HandOverMessage& message, std::vector<Fd>* descriptors,
                       Deadline deadline);

// Rank 0's own address: this machine, fresh tokens and a socket name that no socket has yet.
Result<HandOverAddress> make_address();
Result<HandOverAddress> read_address(const std::string& published);

// What both sides of a hand-over have in common: rank 0 (hand_over_host.cpp) and the others (hand_over_guest.cpp).
class HandOverSide {
 public:
  HandOverSide(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline);

 protected:
  std::string name(int rank) const { return options_.roster.name(rank); }
  Status own_error(const Status& status) const { return status.with_context(name(options_.rank)); }
  // Maps what introductions_ and descriptors_ hold, and the control memory.
  Result<HandOver> build(const Fd& control);

  Store& store_;
  const SharedArena& arena_;
  const HandOverOptions& options_;
  const Deadline deadline_;
  Introduction self_;
  std::vector<Introduction> introductions_;   // by rank
  std::vector<std::vector<Fd>> descriptors_;  // arena, pidfd; by rank
};

// The key in the store that says why a rank cannot take part, if rank 0 may not know.
std::string refused_key(const std::string& group);

// Rank 0's address, under hand_over_key().
Status publish(Store& store, const std::string& group, const HandOverAddress& address);

Result<HandOver> hand_over_as_host(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                   Deadline deadline);
Result<HandOver> hand_over_as_guest(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                    Deadline deadline);

}  // namespace lockstep::comm
