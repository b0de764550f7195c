#include "failure.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kThen = ". After that ";

}  // namespace

std::string caused(const std::string& cause, const std::string& what) {
  if (cause.empty() || what.starts_with(cause)) return what;
  return cause + std::string(kThen) + what;
}

std::string first_cause(std::string_view message) {
  return std::string(message.substr(0, message.find(kThen)));
}

}  // namespace lockstep::comm
