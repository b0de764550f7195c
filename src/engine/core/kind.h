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
  kRefusal,  // a rank cannot take part; the input is the reason as text
};
const char* to_string(Kind kind);

}  // namespace lockstep::comm
