// A program with ranks that tells what its process is like, and then waits to be ended: standby_worker [WORD] FOLDER.
// Adds a line to FOLDER/RANK: a JSON object.
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "lockstep/launch/world.h"

namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Read before main(), as programs with static objects do, and as early as programs may.
__attribute__((init_priority(101))) const std::string store_at_start = variable("LOCKSTEP_STORE");

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int oom_score() {
  int score = -1;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  return score;
}

std::string standard_input() {
  char path[4096] = {};
  return readlink("/proc/self/fd/0", path, sizeof path - 1) < 0 ? "" : path;
}

}  // namespace

int main(int argc, char** argv) {
  auto world = lockstep::launch::resolve_world();
  if (argc < 2 || !world.ok()) return 3;
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  std::FILE* file = std::fopen((argv[argc - 1] + std::string("/") + std::to_string(world->rank)).c_str(), "a");
  std::fprintf(file,
               "{\"pid\": %d, \"start\": \"%s\", \"restarts\": \"%s\", \"ranks\": %d, \"local_rank\": %d, \"store\": "
               "\"%s\", \"store_at_start\": \"%s\", \"error_file\": \"%s\", \"standby\": \"%s\", \"descriptors\": %d, "
               "\"name\": \"%s\", \"nice\": %d, \"oom_score\": %d, \"stdin\": \"%s\"}\n",
               getpid(), variable("LOCKSTEP_RESTART_COUNT").c_str(), variable("TORCHELASTIC_RESTART_COUNT").c_str(),
               world->world_size, world->local_rank, variable("LOCKSTEP_STORE").c_str(), store_at_start.c_str(),
               variable("TORCHELASTIC_ERROR_FILE").c_str(), variable("LOCKSTEP_STANDBY").c_str(), open_descriptors(),
               name, getpriority(PRIO_PROCESS, 0), oom_score(), standard_input().c_str());
  std::fclose(file);
  std::printf("start %s\n", variable("LOCKSTEP_RESTART_COUNT").c_str());
  std::fflush(stdout);
  for (;;) pause();
}
