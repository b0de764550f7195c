// "host:port", with IPv6 addresses in brackets: "node7:29500", "127.0.0.1:0", "[::1]:29500".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const;
};

// `what` names the source in errors (kInvalidArgument): "MASTER_PORT", "init_method".
Result<Endpoint> parse_endpoint(std::string_view text, std::string_view what);
// Accepts 0, for which the kernel picks a port.
Result<std::uint16_t> parse_port(std::string_view text, std::string_view what);

}  // namespace lockstep::comm
