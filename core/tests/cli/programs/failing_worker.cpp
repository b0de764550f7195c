// A worker that claims a failure, and one that fails because of it and exits first: failing_worker FOLDER [EXIT_CODE]
//
// Rank 0 claims, lets rank 1 fail, and exits with EXIT_CODE (default 5) when rank 1 has exited; "stay": it never exits.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "launch/job/first_failure.h"

namespace {

int open_file(const std::string& path) {
  return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

// Held until the process has exited.
void lock(const std::string& path) {
  if (flock(open_file(path), LOCK_EX) != 0) std::abort();
}

void wait_for(const std::string& path) {
  while (access(path.c_str(), F_OK) != 0) usleep(1000);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string folder = argv[1];
  const std::string exit_code = argc > 2 ? argv[2] : "5";
  const char* const rank = std::getenv("RANK");
  if (rank == nullptr) return 2;
  if (std::string(rank) != "0") {
    lock(folder + "/alive");
    open_file(folder + "/locked");
    wait_for(folder + "/claimed");
    return 7;
  }
  wait_for(folder + "/locked");
  if (!lockstep::launch::claim_first_failure(0).ok()) return 3;
  open_file(folder + "/claimed");
  lock(folder + "/alive");
  while (exit_code == "stay") pause();
  return std::stoi(exit_code);
}
