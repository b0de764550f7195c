// Acts as another user of this machine, in a child process. Needs root.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::test {

class OtherUser {
 public:
  static constexpr uid_t kNumber = 12345;

  // Forks; `act` runs in the child. Throws std::runtime_error when this process may not change users.
  explicit OtherUser(const std::function<std::string()>& act);
  ~OtherUser();  // kills
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  // Blocks until `act` has ended; its result, or the text of its exception. The test fails after `limit`.
  std::string result(std::chrono::seconds limit = std::chrono::seconds(60));

 private:
  pid_t pid_ = -1;
  Fd answer_;
};

}  // namespace lockstep::test
