// A YAML file as a tree in which every part knows its place. Refuses what a configuration does not need: aliases, merge
// keys, tags, several documents, keys that are no words, keys that come twice.
#pragma once

#include <optional>
#include <string>

#include "options/reading.h"
#include "options/value.h"

namespace lockstep::config {

using options::Member;
using options::Node;
using options::Place;
using options::Problems;

// The tree of a text. Mistakes go to `problems`. nullopt: after one of them the rest of the text cannot be read. An
// empty text is an empty map.
std::optional<Node> parse_document(const std::string& text, Problems& problems);

}  // namespace lockstep::config
