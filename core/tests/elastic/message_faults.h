// Faults of the messages between machines: each transport that this program opens is a FaultyTransport around that of
// UCX (the linker puts message_faults.cpp in the place of open_ucx, see CMakeLists.txt).
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep::test {

struct MessageFault {
  enum class Kind { kDelay, kDrop, kTruncate };
  Kind kind = Kind::kDelay;
  bool is_control = false;  // an active message, with which the engine tells of ranks; else a tagged one, data
  int after = 0;            // such messages of this process that leave whole before
  std::chrono::milliseconds delay{0};  // of the message, and of all later ones to the same rank until then
};

// This happens once to a message of this process. `happened` is then told "delayed", "dropped" or "truncated", and
// which message: "data to 3", "control to 3".
void arm(const MessageFault& fault, std::function<void(const std::string&)> happened);
// What has not happened will not.
void disarm();

}  // namespace lockstep::test
