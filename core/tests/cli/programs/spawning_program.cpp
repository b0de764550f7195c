// A program that calls spawn: spawning_program COMMAND. Rank 1, which starts last, runs the shell's command; both ranks
// sleep.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "lockstep/launch/spawn.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  lockstep::launch::SpawnOptions options;
  options.nprocs = 2;
  const lockstep::Status ended = lockstep::launch::spawn(
      [&](int rank) {
        if (rank == 1 && std::system(argv[1]) != 0) std::exit(3);
        sleep(600);
      },
      options);
  std::puts(ended.message().c_str());
  return ended.ok() ? 0 : 1;
}
