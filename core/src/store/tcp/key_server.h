// A store without a job key makes a key of its own. It gives the key to processes of the same user on the same machine,
// through a Unix socket: the kernel tells each end the user of the other.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

class KeyServer {
 public:
  static Result<KeyServer> open();

  // The abstract name of its socket: random, so that no other program can have taken it.
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }
  // Readable when a process has connected.
  int fd() const { return listener_.get(); }
  // Gives the key to the processes that have connected, without waiting. Fails when no descriptors are left.
  Status serve() const;

 private:
  KeyServer(std::string name, std::string key, Fd listener)
      : name_(std::move(name)), key_(std::move(key)), listener_(std::move(listener)) {}
  std::string name_;
  std::string key_;
  Fd listener_;
};

// kPermission: the process at the other end runs as another user.
Result<std::string> fetch_key(const std::string& name, Deadline deadline);

}  // namespace lockstep::comm
