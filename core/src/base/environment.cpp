#include "lockstep/base/environment.h"

#include <unistd.h>

namespace lockstep {

Environment Environment::of_process() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) result.set(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

std::optional<std::string> Environment::get(std::string_view name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

}  // namespace lockstep
