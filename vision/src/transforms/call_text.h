// Text such as "RandomRotation(15, fill=(0, 0, 255))", taken apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::data {

struct TextValue {
  enum class Kind { kNumber, kWord, kList, kCall } kind = Kind::kWord;
  double number = 0;
  std::string word;                // of a call: its name
  std::vector<TextValue> items;    // of a list, or the arguments of a call
  std::vector<std::string> names;  // of the arguments of a call; empty for those by position
  // A call whose transforms are not in a list, as print() shows them. They are in a list here: argument `transforms`.
  // Also a call without arguments whose ')' is on a line of its own: print() shows an empty Compose so.
  bool shown = false;
};

// A name with or without arguments. kInvalidArgument says where the text goes wrong.
Result<TextValue> parse_call(std::string_view text);

}  // namespace lockstep::data
