// UcxFrame: the header of every active message of UCX that one channel sends to another. A channel is the part of a
// shared worker that belongs to one group.
#pragma once

#include <cstdint>

namespace lockstep::comm {

inline constexpr unsigned kUcxMessageId = 1;

struct UcxFrame {
  enum class Kind : std::uint32_t {
    kOpen,     // the sender counts on this connection. The data are the sender's UCX address
    kEnd,      // the sender has closed: nothing more comes from it
    kTagged,   // a part of a tagged message
    kMessage,  // an active message. Its header follows the frame
    kOffer,    // a large active message that stays with its sender. Its header follows the frame
    kWanted,   // the receiver of an offer wants the message
    kOffered,  // a part of this message
    kTaken,    // the receiver of an offer has the message, or does not want it
  };
  std::uint64_t to = 0;    // the receiver's channel
  std::uint64_t from = 0;  // the sender's channel
  Kind kind = Kind::kOpen;
  std::uint32_t padding = 0;
  std::uint64_t tag = 0;     // the tag, or the number of the offer
  std::uint64_t bytes = 0;   // of the whole message
  std::uint64_t offset = 0;  // where this part begins
};
static_assert(sizeof(UcxFrame) == 48);

}  // namespace lockstep::comm
