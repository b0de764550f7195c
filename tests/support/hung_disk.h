// A disk that stops answering, as that of a file server that is down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"

namespace lockstep::test {

// A FUSE file system that a thread of this process serves, with folders and files in memory. It is mounted nowhere:
// other processes reach it through this process's descriptor. This process itself must not: its thread might wait for
// itself. Needs root.
class HungDisk {
 public:
  // Throws std::runtime_error with the reason when the system does not allow it.
  HungDisk();
  ~HungDisk();
  HungDisk(const HungDisk&) = delete;
  HungDisk& operator=(const HungDisk&) = delete;

  std::string path(const std::string& name) const;
  // From now on every call waits, except that closing a file does not. Only SIGKILL ends a call.
  void hang();
  void go_on();
  // What a file holds; empty if there is none. `name` is "folder/file".
  std::string contents(const std::string& name) const;

 private:
  struct Node {
    bool folder = false;
    std::string bytes{};                              // of a file
    std::map<std::string, std::uint64_t> children{};  // of a folder, by name
  };
  struct Request;
  void serve();
  void answer(const Request& request) LOCKSTEP_REQUIRES(mutex_);
  void look_up(const Request& request, std::string_view name) LOCKSTEP_REQUIRES(mutex_);
  void make(const Request& request, std::string_view name, bool folder) LOCKSTEP_REQUIRES(mutex_);
  void send(const Request& request, int error, std::string_view reply = {}) const;
  void wake() const;

  Fd device_;
  Fd mount_;
  Fd event_;
  mutable Mutex mutex_;
  bool hung_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Node> nodes_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep::test
