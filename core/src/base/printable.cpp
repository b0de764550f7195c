#include "base/printable.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

namespace lockstep {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

// The first character of a text that is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t bytes = byte(0) < 0xc0 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : byte(0) < 0xf8 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  char32_t code = byte(0) & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  // UTF-8 forbids overlong forms, surrogates and what is beyond Unicode.
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, bytes};
}

bool is_control(char32_t code) {
  const auto between = [code](char32_t first, char32_t last) { return code >= first && code <= last; };
  return code < 0x20 || between(0x7f, 0x9f) ||  // C0, DEL, C1
         code == 0x061c || between(0x200e, 0x200f) || between(0x2028, 0x202e) || between(0x2066, 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::string_view bytes = text.substr(0, character.bytes == 0 ? 1 : character.bytes);
    if (character.bytes != 0 && !is_control(character.code)) {
      result += bytes;
    } else {
      for (const char c : bytes) fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(bytes.size());
  }
  return result;
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = first_character(text).bytes;
    result += bytes == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

std::u32string surrogate_escaped(std::string_view text) {
  std::u32string result;
  while (!text.empty()) {
    const Character character = first_character(text);
    const bool valid = character.bytes != 0;
    result += valid ? character.code : static_cast<char32_t>(0xdc00 + static_cast<unsigned char>(text[0]));
    text.remove_prefix(valid ? character.bytes : 1);
  }
  return result;
}

}  // namespace lockstep
