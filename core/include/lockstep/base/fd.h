// Owner of one file descriptor, which it closes when it is destroyed.
#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), guarded_(std::exchange(other.guarded_, false)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::exchange(other.fd_, -1);
    guarded_ = std::exchange(other.guarded_, false);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    if (guarded_) unguard();
    return std::exchange(fd_, -1);
  }
  void reset(int fd = -1) {
    if (guarded_) {
      close_guarded();
    } else if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }

  // In a fork of this process, this descriptor is /dev/null. For connections and locks: the other side would otherwise
  // see them in use for as long as the child lives. Call it right after opening the descriptor.
  void keep_from_forks();

 private:
  void unguard();
  void close_guarded();

  int fd_ = -1;
  bool guarded_ = false;
};

}  // namespace lockstep
