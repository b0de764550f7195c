// A file whose writes may fail (a full disk, a quota, a size limit) while the job goes on. Lost lines are counted, and
// the next write that succeeds is preceded by a line that says how many are missing.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

class LossyFile {
 public:
  // Blocks like write(). After a signal it stops if `*stop` is set (nullptr: it goes on). Returns 0, or the errno when
  // some of the bytes were not written (EINTR: stopped).
  int write(int fd, std::string_view bytes, const std::atomic<bool>* stop = nullptr);

 private:
  std::size_t missing_lines_ = 0;
  int reason_ = 0;  // 0: nothing is missing
};

}  // namespace lockstep::launch
