// Runs a GoogleTest's ranks as processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace lockstep::test {

// Runs fn(rank) in `world` forks of this process, which must have no other thread yet: call it first in a test's body.
// A fork begins in a millisecond, where a new process with LibTorch takes 0.2 seconds of a core. In fn the environment
// is that of a launcher. EXPECT and ASSERT failures, exceptions, signals and exit codes in a rank fail the current
// test, with the rank and the message, and so does a rank that takes longer than `deadline`. What a rank has started is
// killed at its end. Afterwards it is checked that nothing is left: no child processes, no descriptors, no /dev/shm
// entries of Lockstep.
//
// When LOCKSTEP_TEST_MACHINES is set, the ranks act as if they ran on that many machines: they share memory only with
// ranks of their own machine, and reach the others through the loopback interface.
//
// May be called several times in one test.
void run_processes(int world, const std::function<void(int rank)>& fn,
                   std::chrono::seconds deadline = std::chrono::seconds(100));

// A test in which rank `victim` of `world` processes kills itself. fn(rank, report) runs in each; failures in the
// others fail the test, as in run_processes. The others get the time to write what they saw into the file `report` (and
// files whose names begin alike). Then check(report) runs here, for each of the others.
void run_processes_with_a_victim(int world, int victim,
                                 const std::function<void(int rank, const std::filesystem::path& report)>& fn,
                                 const std::function<void(const std::filesystem::path& report)>& check);

// The same for a victim that ends in any way: `end` is how ("was killed by SIGSEGV", "exited with 3"; empty: with 0).
void run_processes_with_a_victim(int world, int victim, const std::function<void(int rank)>& fn,
                                 const std::string& end);

// What exists now; afterwards there must not be more.
struct Leftovers {
  std::set<int> descriptors;
  std::set<pid_t> children;
  std::set<std::string> shared_memory;

  static Leftovers now();
};

// Fails the current test for everything that exists now and did not before.
void expect_nothing_left(const Leftovers& before);

// Processes whose parent is `parent`, zombies included.
std::set<pid_t> children_of(pid_t parent);

}  // namespace lockstep::test
