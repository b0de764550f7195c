#include "picture_tools/web_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : printable(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string to_base64(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < count ? bytes[i + k] : 0U);
    for (std::size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[bits >> (18 - 6 * k) & 63U] : '=';
  }
  return text;
}

std::string picture_element(std::string_view base64) {
  return fmt::format("<img alt='' src='data:image/jpeg;base64,{}'>", base64);
}

std::string page_head(std::string_view title, std::string_view style) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; style-src "
      "'unsafe-inline'\">\n"
      "<meta name='viewport' content='width=device-width,initial-scale=1'><link rel='icon' href='data:,'>\n"
      "<title>{}</title><style>{}</style></head>\n<body>",
      escaped(title), style);
}

}  // namespace lockstep::data
