// One reading of all layers: finds the values and the mistakes, then fills the fields.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/document.h"
#include "lockstep/base/status.h"
#include "lockstep/config/schema.h"

namespace lockstep::config {

class Reader {
 public:
  Reader(Schema& schema, const Sources& sources)
      : schema_(schema), sources_(sources), problems_(sources.file.native()) {}

  Status run();

 private:
  struct Value {
    std::function<void()> store;
    Origin origin;
  };

  // Mistakes of the program, not of its user.
  Status check_schema() const;
  Status read_file();
  void walk(const Node& map, const std::string& section);
  void take_member(const Member& member, const std::string& section);
  void tell_unknown(const Member& member, const std::string& section);
  void take_value(const Key& key, const Node& node, const std::string& subject, Origin origin);
  void take_texts();
  bool is_section(const std::string& path) const;
  bool is_of_others(const Member& member) const;
  std::vector<std::string> names_in(const std::string& section) const;

  Schema& schema_;
  const Sources& sources_;
  Problems problems_;
  std::map<const Key*, Value> values_;  // of the highest layer so far
};

}  // namespace lockstep::config
