// What the sanitizers' own libraries need, and programs under test may not have.
#pragma once

#include <cstdlib>
#include <string>

namespace lockstep::test {

// For tests of programs without threads or descriptors, with a thread that a disk holds, or that leak. A search for
// leaks needs a thread of its own and waits until every other thread has stopped. A check of types needs a descriptor,
// and reports a wrong type if there is none. Programs that this process starts from now on search for no leaks and go
// on after such a report.
inline void expect_no_leak_search_in_programs() {
#ifdef __SANITIZE_ADDRESS__
  const auto add = [](const char* name, const std::string& option) {
    const char* const options = std::getenv(name);
    setenv(name, (options == nullptr ? option : options + (':' + option)).c_str(), 1);
  };
  add("ASAN_OPTIONS", "detect_leaks=0");
  add("UBSAN_OPTIONS", "halt_on_error=0");
#endif
}

}  // namespace lockstep::test
