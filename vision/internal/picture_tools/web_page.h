// Pages that a browser shows from a file, without a network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

// Safe between tags and in attributes with quotes: markup is escaped, and bytes that are not UTF-8 or are control
// characters are made visible.
std::string escaped(std::string_view text);

// As in data URLs (RFC 4648, with padding).
std::string to_base64(std::span<const std::uint8_t> bytes);
// An <img> element. `base64` is that of a JPEG.
std::string picture_element(std::string_view base64);

// The page up to its body. A browser loads and runs nothing for the page, whatever the text in the body is.
std::string page_head(std::string_view title, std::string_view style);

}  // namespace lockstep::data
