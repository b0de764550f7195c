// Base64 as in data URLs (RFC 4648, with padding).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::report {

std::string to_base64(std::span<const std::uint8_t> bytes);
// Whether the text is base64 and nothing else.
bool is_base64(std::string_view text);

}  // namespace lockstep::report
