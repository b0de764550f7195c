// A worker that prints as programs do that know nothing of a launcher: printing_worker abort|wait
//
// It prints a line and the beginning of another one, and then aborts or waits for ever.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  std::printf("the last line\nunfinished");
  if (argc == 2 && std::strcmp(argv[1], "abort") == 0) std::abort();
  for (;;) pause();
}
