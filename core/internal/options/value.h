// From the text of a value to a field, and back.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/options/table.h"

namespace lockstep::options {

// Where something is in a file. Counted from 1.
struct Place {
  int line = 1;
  int column = 1;
};

struct Member;

// A value as it was written.
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar that stood in quotes is never a number
  Place place;
  std::vector<Node> items;
  std::vector<Member> members;  // each name once
};

struct Member {
  std::string name;
  Place place;
  Node value;
};

// "a whole number of at least 1", "one of fp32, bf16", "a list of whole numbers such as [0, 2]": what a key takes.
// `in_file`: no value is `null` there, and `none` elsewhere.
std::string expected(const Key& key, bool in_file);

// What stores the value in the key's field; an error says what was expected and found.
Result<std::function<void()>> to_value(const Key& key, const Node& node, bool in_file);

// The node that a file would have for this text of a variable or a command line: commas separate the values of a list,
// `none` means no value where a key may have none, and a flag may be 1 or 0.
Node node_from_text(const Key& key, std::string_view text);

// What was found in the place of a value: "'abc'", "a list", "nothing".
std::string found(const Node& node);

// The field's present value as a file would have it.
std::string value_text(const Field& field);

bool is_list(const Field& field);

// A word from outside for an error: in quotes, cut, without control characters.
std::string shown(std::string_view word);

}  // namespace lockstep::options
