// Where the ranks meet before each timed call: counters in a file that all of them map. It is the same for all
// contenders, in peers/meeting.py too. After a contender's own barrier ranks go on at different times, over TCP tens of
// microseconds apart, and the last one's delay would count as time of the call. Standard library and Linux only.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace lockstep::bench {

class Meeting {
 public:
  // `output` is a path that all ranks have, and no other run; the counters are in a file beside it.
  Meeting(const std::string& output, int rank, int world) : path_(output + ".meeting"), rank_(rank), world_(world) {
    const int file = open(path_.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, bytes()) != 0) fail("cannot be written");
    void* const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) fail("cannot be mapped");
    counters_ = static_cast<std::byte*>(memory);
  }
  ~Meeting() { munmap(counters_, bytes()); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Returns when all ranks have called it as often. Spins, so that all return within a fraction of a microsecond; with
  // more ranks than cores they take turns.
  void meet() {
    counter(rank_).store(++times_, std::memory_order_release);
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const bool crowded = world_ > sysconf(_SC_NPROCESSORS_ONLN);
    for (int other = 0; other < world_; ++other) {
      for (unsigned turn = 1; counter(other).load(std::memory_order_acquire) < times_; ++turn) {
        if (crowded) sched_yield();
        if (turn % 4096 == 0 && std::chrono::steady_clock::now() > end) fail("a rank has not come within 2 minutes");
      }
    }
    if (times_ == 1 && rank_ == 0) unlink(path_.c_str());  // all have it
  }

 private:
  static constexpr std::size_t kLine = 64;

  std::size_t bytes() const { return kLine * world_; }
  std::atomic_ref<std::uint64_t> counter(int rank) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(counters_ + kLine * rank));
  }
  [[noreturn]] void fail(const char* problem) const {
    std::fprintf(stderr, "rank %d: %s: %s\n", rank_, path_.c_str(), problem);
    std::exit(2);
  }

  std::string path_;
  int rank_;
  int world_;
  std::uint64_t times_ = 0;
  std::byte* counters_ = nullptr;
};

}  // namespace lockstep::bench
