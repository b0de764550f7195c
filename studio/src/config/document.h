// A YAML file as a tree in which every part knows its place. Refuses what a configuration does not need: aliases, merge
// keys, tags, several documents, keys that are no words, keys that come twice.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::config {

// Counted from 1.
struct Place {
  int line = 1;
  int column = 1;
};

struct Member;

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

// The mistakes that were found, each with its place.
class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}

  // "file:line:column: message".
  void add(Place place, std::string_view message);
  // A mistake outside of the file, told after those of the file.
  void add(std::string_view message);
  bool empty() const { return in_file_.empty() && elsewhere_.empty(); }
  // One message a line, those of the file by line; at most `most`, then how many more there are.
  std::string text(std::size_t most) const;
  // "file:line:column".
  std::string name_of(Place place) const;

 private:
  struct InFile {
    Place place;
    std::string text;
  };
  std::string file_;
  std::vector<InFile> in_file_;
  std::vector<std::string> elsewhere_;
};

// The tree of a text. Mistakes go to `problems`. nullopt: after one of them the rest of the text cannot be read. An
// empty text is an empty map.
std::optional<Node> parse_document(const std::string& text, Problems& problems);

}  // namespace lockstep::config
