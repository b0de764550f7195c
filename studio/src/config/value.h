// From the text of a value to a field, and back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "config/document.h"
#include "lockstep/config/schema.h"

namespace lockstep::config {

// "a whole number of at least 1", "one of fp32, bf16", "a list of whole numbers such as [0, 2]": what a key takes.
std::string expected(const Key& key);

// What stores the value in the key's field; nullopt: the node is no value of the key.
std::optional<std::function<void()>> to_value(const Key& key, const Node& node);

// The node that a file would have for this text of a variable or a command line: commas separate the values of a list,
// and `none` means no value where a key may have none.
Node node_from_text(const Key& key, std::string_view text);

// What was found in the place of a value: "'abc'", "a list", "nothing".
std::string found(const Node& node);

// The field's present value as a file would have it.
std::string value_text(const Field& field);

bool is_list(const Field& field);

}  // namespace lockstep::config
