// Containers for tests, made of namespaces with `unshare`, as container runtimes make them. They need root.
#pragma once

#include <string>
#include <vector>

namespace lockstep::test {

// What is different inside.
struct Container {
  enum class User {
    kSame,
    kRootInside,    // the same user, whom the user namespace calls 0
    kNumberInside,  // the same user, whom the user namespace calls 1000
    kNobody,        // the user namespace has no number for the user
    kOther,         // another user of the machine, whom the user namespace calls 0
  };
  User user = User::kSame;
  bool processes = false;     // a PID namespace with a /proc of its own
  bool ipc_and_name = false;  // IPC and UTS namespaces
  bool read_only = false;     // the root file system
  bool no_proc = false;       // /proc is empty
  std::string shm = {};       // size of /dev/shm; "0": it cannot be written
  std::string cores = {};     // processor time in cores, as the files of control groups of both versions say it
  std::string hosts = {};     // a file in the place of /etc/hosts
  // A program that forbids system calls as Docker's default profile does, and runs the rest of its command line.
  std::string filter = {};
};

// A command line that runs `command` inside.
std::vector<std::string> inside(const Container& container, const std::vector<std::string>& command);

}  // namespace lockstep::test
