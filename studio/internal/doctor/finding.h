// What `lockstep doctor` says about a machine.
#pragma once

#include <string>
#include <vector>

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

}  // namespace lockstep::doctor
