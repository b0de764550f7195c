// Environment variables as a value, so that the code that reads them is testable without a process.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  Environment() = default;  // no variables at all
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}

  // A copy of this process's variables. Not safe while another thread calls setenv, as getenv is not.
  static Environment of_process();

  // An empty variable counts as not set.
  std::optional<std::string> get(std::string_view name) const;
  bool has(std::string_view name) const { return get(name).has_value(); }
  void set(std::string_view name, std::string_view value) { variables_[std::string(name)] = value; }

 private:
  Variables variables_;
};

}  // namespace lockstep
