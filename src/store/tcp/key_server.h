// A store that nobody has given a job key makes one of its own. Processes of the same user on the same machine get it
// at the store's booth: a Unix socket whose both ends the kernel knows the users of. Nobody else does.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

class KeyServer {
 public:
  static Result<KeyServer> open();

  // The abstract name of its socket, which is random, so that nobody can have taken it.
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }
  // Readable when somebody has come.
  int fd() const { return listener_.get(); }
  // Gives the key to those who have come, without waiting. An error: no descriptors left.
  Status serve() const;

 private:
  KeyServer(std::string name, std::string key, Fd listener)
      : name_(std::move(name)), key_(std::move(key)), listener_(std::move(listener)) {}
  std::string name_;
  std::string key_;
  Fd listener_;
};

// kPermission: another user's process is there, or this one's user is not the store's.
Result<std::string> fetch_key(const std::string& name, Deadline deadline);

}  // namespace lockstep::comm
