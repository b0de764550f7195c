// The protocol between TcpStore and TcpStoreServer. All numbers little-endian.
//
//   frame    u32 length of what follows, u8 kind, i64 number, u32 count, then count times (u32 length, bytes)
//
// A client has at most one request under way per connection; the answer is one frame. After kWill there may be frames
// of length 0 before any answer: heartbeats, to be skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/store/limits.h"
#include "lockstep/store/store.h"

namespace lockstep::comm::wire {

// A request's kind is a StoreCall::Op (parts: its keys, then its values; number: its amount, or the milliseconds to
// wait; kGet is answered with as many values as fit into one frame), or one of these. With kUnless added, the first
// part is StoreCall::unless.
using Op = StoreCall::Op;
inline constexpr Op kPush{32};  // parts: list, value; sets "list/N", N counted from 1; answers number N
inline constexpr Op kWill{33};  // parts: list, value: a push when this connection ends (list empty: none); number:
                                // milliseconds of silence that end it
inline constexpr Op kDeletePrefix{34};  // parts: prefix; deletes all keys that begin with it; answers how many
inline constexpr std::uint8_t kUnless = 64;

inline constexpr std::int64_t kWaitForever = -1;  // as `number` of kGet and kWait

struct Message {
  std::uint8_t kind = 0;  // an Op in a request, an ErrorCode in an answer (then parts: the error's text)
  std::int64_t number = 0;
  std::vector<std::string> parts;
};

// Enough for a value of the largest size with its key and a compare value of modest size.
inline constexpr std::size_t kMaxFrameBytes = kMaxValueBytes + (std::size_t{1} << 20);
inline constexpr std::size_t kLengthBytes = 4;

// The bytes of a frame with `parts`, without the length in front.
std::size_t body_bytes(const std::vector<std::string>& parts);
// The whole frame, length included.
std::string encode(const Message& message);
// The length in front of a frame; `bytes` holds at least kLengthBytes.
std::size_t frame_length(std::string_view bytes);
// kCorrupt for anything that is not exactly one message.
Result<Message> decode(std::string_view body);

// The number of a request that waits until `deadline`, counted from now.
std::int64_t wait_until(Deadline deadline);
Message request_of(StoreCall call);
// nullopt: not what request_of() makes.
std::optional<StoreCall> call_of(Message request);

Message answer_of(Result<StoreAnswer> answer);
Message failure(const Status& status);
// The error in an answer, or success.
Status status_of(const Message& answer);

}  // namespace lockstep::comm::wire
