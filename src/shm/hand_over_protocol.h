// What ranks say to one another, and leave in the store, while they hand over their memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

using Token = std::array<std::byte, 16>;

// What a rank says of itself; its arena and its pidfd travel with it.
struct Introduction {
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int64_t pid = 0;
  std::uint64_t first_bytes = 0;  // of its arena's first segment
};

// Everything that is said, in both directions, so that any message may be a refusal instead.
//
//   rank 0 -> rank   kGreeting       with rank 0's token
//   rank -> rank 0   kIntroduction   with the group's token; arena, pidfd
//   rank 0 -> rank   kControl        the control memory; then for each rank:
//   rank 0 -> rank   kPeer           arena, pidfd
//   rank -> rank 0   kReport         all is here and mapped, or not
//   rank 0 -> rank   kVerdict        every rank has all, or why there will be no group; a refusal may come earlier
struct HandOverMessage {
  static constexpr std::uint64_t kMagic = 0x4c4b5354'41524e42;  // "LKSTARNB"
  enum class Kind : std::int32_t { kNone, kGreeting, kIntroduction, kControl, kPeer, kReport, kVerdict };
  std::uint64_t magic = kMagic;
  Kind kind = Kind::kNone;
  std::int32_t code = 0;  // an ErrorCode
  Token token{};
  Introduction introduction{};
  std::array<char, 504> text{};
};

// Where rank 0 can be reached, or why it cannot, as published in the store. With its token each side proves that it has
// read this, or written it.
struct Address {
  std::array<char, 64> machine{};
  std::array<char, 64> host{};
  std::array<char, 48> socket{};
  Token greeting{};  // rank 0's
  Token token{};     // the others'
  std::int32_t code = 0;
  std::array<char, 500> text{};
};

void put(const Status& status, HandOverMessage& message);
void put(const Status& status, Address& address);
Status status_in(const Address& address);

Status send_message(int socket, const HandOverMessage& message, Deadline deadline,
                    std::span<const int> descriptors = {});
// A message of this kind. Otherwise the refusal that came instead, or kMismatch for a message of another kind; kIo with
// a complete message: this process has no descriptors left for what came with it. Without `descriptors`, those are
// dropped.
Status receive_message(int socket, HandOverMessage::Kind kind, HandOverMessage& message, std::vector<Fd>* descriptors,
                       Deadline deadline);

// Rank 0's own address, without a socket yet: fresh tokens, this machine.
Result<Address> make_address();
Result<Address> read_address(const std::string& published);

}  // namespace lockstep::comm
