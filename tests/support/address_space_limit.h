// Limits the memory that this process may reserve, so that a reader that asks for absurd amounts fails.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace lockstep::test {

class AddressSpaceLimit {
 public:
  // `more`: bytes beyond what the process has now. Sanitizers reserve memory as they like: no limit then.
  explicit AddressSpaceLimit(std::uint64_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limited = before_;
    limited.rlim_cur = static_cast<rlim_t>(pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + more);
    ::setrlimit(RLIMIT_AS, &limited);
#endif
  }
  ~AddressSpaceLimit() {
    ::setrlimit(RLIMIT_AS, &before_);
  }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace lockstep::test
