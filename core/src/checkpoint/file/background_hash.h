// A SHA-256 that is calculated in a thread while the caller reads or writes the bytes, which takes about as long.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <span>
#include <string>
#include <thread>

#include "lockstep/base/mutex.h"
#include "sha256.h"

namespace lockstep::checkpoint {

class BackgroundHash {
 public:
  // Goes on with `hash`. `bytes`: how many will be added. Few are not worth a thread; without one (the system may
  // refuse it) add() does the work.
  BackgroundHash(Sha256 hash, std::uint64_t bytes);
  ~BackgroundHash();
  BackgroundHash(const BackgroundHash&) = delete;
  BackgroundHash& operator=(const BackgroundHash&) = delete;

  // Adds bytes of a CPU tensor, which must not change before digits(). Waits while much is not hashed yet: the tensors
  // may be copies, which take memory.
  void add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes);
  // Ends the calculation.
  std::string digits();

 private:
  struct Work {
    torch::Tensor tensor;  // keeps the bytes alive
    std::span<const std::uint8_t> bytes;
  };

  void run();
  void hash(const Work& work);
  void stop();

  Sha256 hash_;  // the thread's, while there is one
  std::exception_ptr failed_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Work> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace lockstep::checkpoint
