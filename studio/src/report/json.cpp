#include "report/json.h"

#include <cstddef>

namespace lockstep::report {
namespace {

// Exact for JSON. Any other text is refused by the parser, whatever is counted here.
bool has_too_many_levels(std::string_view text) {
  int levels = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;  // what is escaped does not end the quote
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++levels > kMostLevels) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --levels;
    }
  }
  return false;
}

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text) {
  if (has_too_many_levels(text)) return nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded);
  return nlohmann::ordered_json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
}

}  // namespace lockstep::report
