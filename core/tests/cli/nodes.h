// Several launchers of one job, for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/jobs.h"
#include "support/held_port.h"
#include "support/process.h"

namespace lockstep::test {

using Words = std::vector<std::string>;

inline Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline Words shell(const std::string& script) {
  return {"sh", "-c", script};
}

// Waits until one of the workers has said so.
inline bool says(const Process& process, const std::string& text) {
  return wait_for([&] { return contains(process.out_so_far(), text); });
}

// The launchers of a job on this machine, each a node of its own, which meet at 127.0.0.1.
class LocalNodes {
 public:
  explicit LocalNodes(std::string nnodes, Words options = {})
      : nnodes_(std::move(nnodes)), options_(std::move(options)) {}

  // Starts one more launcher. Its number is that of the call, from 0.
  Process& start(int workers, const Words& program, const Words& more = {}, const Words& environment = {});
  Process& node(int number) { return *launchers_[static_cast<std::size_t>(number)]; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_.number()); }

 private:
  std::string nnodes_;
  Words options_;
  HeldPort port_;
  std::vector<std::unique_ptr<Process>> launchers_;
};

}  // namespace lockstep::test
