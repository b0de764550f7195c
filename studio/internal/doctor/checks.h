// What `lockstep doctor` says about a machine, and the checks that only look. Each of these reads files of the system
// below `root` ("" on a real machine, a scratch folder in tests) and returns at once.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::doctor {

enum class Level { kOk, kWarning, kProblem };

struct Finding {
  std::string topic;  // "memory"
  Level level = Level::kOk;
  std::string text;    // what was found, with its numbers
  std::string advice;  // what to do; empty if all is well
};

inline Finding ok(std::string topic, std::string text) {
  return {std::move(topic), Level::kOk, std::move(text), ""};
}
inline Finding warning(std::string topic, std::string text, std::string advice) {
  return {std::move(topic), Level::kWarning, std::move(text), std::move(advice)};
}
inline Finding problem(std::string topic, std::string text, std::string advice) {
  return {std::move(topic), Level::kProblem, std::move(text), std::move(advice)};
}

using Findings = std::vector<Finding>;

// "ok", "warning", "problem".
const char* name_of(Level level);
// A line for each finding, what to do below it, and a last line that counts them.
std::string to_text(const Findings& findings);
std::string to_json(const Findings& findings);

// --- The checks

// Cores, caches, load, clock governor, control groups.
Findings check_processor(const std::string& root);
// Memory, limits of the control group, huge pages, /dev/shm.
Findings check_memory(const std::string& root);
// ulimit: files, processes, locked memory, sizes; kernel settings that the launcher needs.
Findings check_limits(const std::string& root);
// The NVIDIA driver, its GPUs, who uses them.
Findings check_gpus(const std::string& root);
// LibTorch in `folder` (that of the build), of release `version`; both empty: this build has none.
Findings check_libtorch(const std::string& folder, const std::string& version);
// Interfaces, the way to other machines, ports.
Findings check_network(const std::string& root);
// Whether processes of this machine reach one another at 127.0.0.1, as those of every job must.
Status check_loopback();

}  // namespace lockstep::doctor
