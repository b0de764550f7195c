#include "report/parse_json.h"

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
  using Json = nlohmann::ordered_json;
  if (has_too_many_levels(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

}  // namespace lockstep::report
