#include "engine/core/kind.h"

namespace lockstep::comm {

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "nothing";
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllGather: return "all_gather";
    case Kind::kGather: return "gather";
    case Kind::kScatter: return "scatter";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllToAll: return "all_to_all";
    case Kind::kBarrier: return "barrier";
    case Kind::kSend: return "send";
    case Kind::kReceive: return "recv";
    case Kind::kRefusal: return "what it could not take part in";
  }
  return "unknown";
}

}  // namespace lockstep::comm
