#include "lockstep/store/endpoint.h"

#include <fmt/format.h>

#include "base/number_text.h"

namespace lockstep::comm {

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

Result<std::uint16_t> parse_port(std::string_view text, std::string_view what) {
  if (const auto port = number_from_text<std::uint16_t>(text)) return *port;
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("{}: expected a port from 0 to 65535, found '{}'", what, text));
}

Result<Endpoint> parse_endpoint(std::string_view text, std::string_view what) {
  const Status malformed(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: expected host:port (an IPv6 address in brackets, as [::1]:29500), found '{}'", what, text));
  std::size_t host_end = text.rfind(':');
  std::string_view host;
  if (text.starts_with('[')) {
    const auto bracket = text.find("]:");
    if (bracket == std::string_view::npos) return malformed;
    host = text.substr(1, bracket - 1);
    host_end = bracket + 1;
  } else {
    if (host_end == std::string_view::npos || host_end != text.find(':')) return malformed;
    host = text.substr(0, host_end);
  }
  if (host.empty()) return malformed;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto port, parse_port(text.substr(host_end + 1), what));
  return Endpoint{std::string(host), port};
}

}  // namespace lockstep::comm
