// A program that trains, as far as a launcher can tell: all ranks take part in every step, rank 0 keeps the number of
// finished steps in a file, and every start goes on from there. Prints where it began and which world it was in.
//
//   stepping_worker FILE STEPS [RANK STEP [STARTS]]    rank RANK kills itself before STEP, in the first STARTS starts
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "lockstep/store/rendezvous.h"

namespace {

using lockstep::Deadline;

int finished_steps(const std::string& path) {
  std::ifstream file(path);
  int steps = 0;
  file >> steps;
  return steps;
}

void keep(const std::string& path, int steps) {
  const std::string part = path + ".part";
  std::ofstream(part) << steps << "\n";
  std::rename(part.c_str(), path.c_str());
}

int fail(const lockstep::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argv[1];
  const int steps = std::atoi(argv[2]);
  const int victim = argc > 4 ? std::atoi(argv[3]) : -1;
  const int fatal_step = argc > 4 ? std::atoi(argv[4]) : -1;
  const int fatal_starts = argc > 5 ? std::atoi(argv[5]) : 1;
  const auto group = lockstep::comm::rendezvous({.timeout = std::chrono::seconds(60)});
  if (!group.ok()) return fail(group.status());
  const auto& world = group.value();
  std::set<std::string> addresses;
  for (const auto& member : world.members) addresses.insert(member.addresses.begin(), member.addresses.end());
  const int begin = finished_steps(path);
  std::printf("rank %d of %d begins at step %d on %zu addresses\n", world.rank, world.world_size, begin,
              addresses.size());
  std::fflush(stdout);
  const char* const restarts = std::getenv("LOCKSTEP_RESTART_COUNT");
  const int start = restarts == nullptr ? 0 : std::atoi(restarts);
  for (int step = begin; step < steps; ++step) {
    if (world.rank == victim && step == fatal_step && start < fatal_starts) kill(getpid(), SIGKILL);
    const std::string name = "step" + std::to_string(step);
    const auto arrived = world.store->add(name, 1);
    if (!arrived.ok()) return fail(arrived.status());
    if (arrived.value() == world.world_size) {
      if (const auto set = world.store->set(name + "/all", "1"); !set.ok()) return fail(set);
    }
    const auto all = world.store->get(name + "/all", Deadline::after(std::chrono::seconds(60)));
    if (!all.ok()) return fail(all.status());
    if (world.rank == 0) keep(path, step + 1);
    usleep(argc > 6 ? 1000 * std::atoi(argv[6]) : 1000);
  }
  return 0;
}
