// Which operation a rank calls.
#pragma once

#include <cstdint>

namespace lockstep::comm {

enum class Kind : std::uint8_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
  kRefusal,  // this rank cannot take part; its input is the reason, as text
};
const char* to_string(Kind kind);

// A rank's last collective in one word: others read it while the rank writes it.
inline constexpr int kKindBits = 8;
inline std::uint64_t call_word(std::uint64_t sequence, Kind kind) {
  return sequence << kKindBits | static_cast<std::uint64_t>(kind);
}
inline std::uint64_t sequence_of(std::uint64_t call) {
  return call >> kKindBits;
}
inline Kind kind_of(std::uint64_t call) {
  return static_cast<Kind>(call & ((1U << kKindBits) - 1));
}

}  // namespace lockstep::comm
