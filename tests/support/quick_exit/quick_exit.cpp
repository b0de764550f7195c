// A test program ends without the static destructors of the libraries that it is linked with. LibTorch's take its
// operators apart one by one, which is 0.07 of the 0.25 seconds that a process needs to start and end, and the tests
// start thousands. What was made since main() began is destroyed as usual, before this. Part of all programs that use
// LibTorch but c10d_tests, so the whole end is tested there and by the examples.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// A sanitizer reports at the end of the program.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace lockstep::test {
namespace {

void end_now(int status, void* /*unused*/) {
  ::fflush(nullptr);
  ::_exit(status);
}

[[gnu::constructor]] void register_end() {
  ::on_exit(&end_now, nullptr);
}

}  // namespace
}  // namespace lockstep::test

#endif
