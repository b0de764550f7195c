// A file that may refuse what is written to it (a full disk, a quota, a limit of size) without that being the end: what
// it refused is dropped, and once it takes something again, a line says how many lines are missing.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

class LossyFile {
 public:
  // Blocks as write() does, which a signal may interrupt; then `*stop` (null: never) says whether to give up. Answers
  // 0, or why the file refused the bytes or a part of them (an errno; EINTR: given up).
  int write(int fd, std::string_view bytes, const std::atomic<bool>* stop = nullptr);

 private:
  std::size_t missing_lines_ = 0;
  int reason_ = 0;  // 0: nothing is missing
};

}  // namespace lockstep::launch
