// Heartbeats: bytes without meaning on a connection that is silent otherwise, so that the kernels notice soon when one
// of the two machines is gone. Bytes that were sent and not acknowledged are sent again after some 0.2, 0.6, 1.4 s,
// ..., a keepalive probe only once a second. So several packets in a row must be lost before a machine counts as lost.
#pragma once

#include <chrono>

namespace lockstep::comm {

inline constexpr auto kHeartbeatEvery = std::chrono::milliseconds(300);

// Whether an empty frame (wire.h), which the other side skips, is of use and passes at once. Not while an earlier one
// is not acknowledged, nor when the other process has not read for so long that there is hardly room: a process that is
// stopped is not lost.
bool may_send_heartbeat(int fd);

}  // namespace lockstep::comm
