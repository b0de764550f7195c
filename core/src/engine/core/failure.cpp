#include "engine/core/failure.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kThen = ". After that ";
constexpr std::string_view kCut = "...";

}  // namespace

Status loss(const std::string& cause, const std::string& what) {
  return {is_formed_anew(cause) ? ErrorCode::kAborted : ErrorCode::kPeerFailed, caused(cause, what)};
}

std::string caused(const std::string& cause, const std::string& what) {
  std::string_view known = cause;
  if (known.ends_with(kCut)) known.remove_suffix(kCut.size());
  if (known.empty() || what.starts_with(known)) return what;
  if (is_formed_anew(known)) return cause;
  return cause + std::string(kThen) + what;
}

std::string first_cause(std::string_view message) {
  return std::string(message.substr(0, message.find(kThen)));
}

std::string shortened(std::string_view message, std::size_t bytes) {
  if (message.size() <= bytes) return std::string(message);
  std::size_t end = message.rfind(' ', bytes - kCut.size());
  if (end == std::string_view::npos) end = bytes - kCut.size();
  // Cuts before kThen, instead of inside it.
  for (std::size_t then = message.find(kThen); then < end; then = message.find(kThen, then + 1)) {
    if (end <= then + kThen.size()) end = then;
  }
  return std::string(message.substr(0, end)) + std::string(kCut);
}

}  // namespace lockstep::comm
