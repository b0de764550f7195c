// One reading of all layers: the values and mistakes that were found.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options/value.h"

namespace lockstep::options {

// The mistakes that were found, each with its place.
class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}

  // "file:line:column: message".
  void add(Place place, std::string_view message);
  // A mistake outside of the file. text() has such mistakes after the mistakes in the file.
  void add(std::string_view message);
  bool empty() const { return in_file_.empty() && elsewhere_.empty(); }
  // One message a line. Messages about the file are in the order of its lines. After `most` messages it says how many
  // more there are.
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

class Reading {
 public:
  struct Value {
    std::function<void()> store;
    Origin origin;
  };

  explicit Reading(std::string file) : problems(std::move(file)) {}

  void take_from_file(const Key& key, const Node& node);
  void take_variables(const Table& table, const Sources& sources);
  void take_options(const Table& table, const std::vector<Option>& options);
  // Of the highest layer so far; nullptr: none.
  const Value* value_of(const Key& key) const;

  Problems problems;

 private:
  // `subject`: what an error begins with.
  void take(const Key& key, const Node& node, const std::string& subject, Origin origin);

  std::map<const Key*, Value> values_;
};

}  // namespace lockstep::options
