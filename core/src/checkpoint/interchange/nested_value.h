// A dict that is built from its leaves, each with the path to it, as Python's unflatten_state_dict() does.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/state/dict_growth.h"

namespace lockstep::checkpoint {

class NestedValue {
 public:
  // A key of a dict, or an index of a list.
  using Step = std::variant<std::string_view, std::int64_t>;

  NestedValue();

  // Throws CheckpointError (kCorrupt) when the paths contradict one another, or would make absurdly long lists.
  void add(const std::vector<Step>& path, c10::IValue value);

  // The dict. Throws CheckpointError (kCorrupt) for keys that were chosen to take all memory.
  c10::IValue build();

 private:
  struct Node {
    bool is_leaf = true;
    bool is_list = false;
    c10::IValue value;                                // of a leaf
    std::vector<std::pair<Step, std::size_t>> parts;  // in the order in which they came: key, place in nodes_
  };

  std::size_t part_of(std::size_t node, const Step& step);
  c10::IValue build(const Node& node);
  c10::IValue build_list(const Node& node);

  std::vector<Node> nodes_;                                    // the first is the dict
  std::map<std::pair<std::size_t, Step>, std::size_t> index_;  // of parts
  std::int64_t list_places_ = 0;                               // of all lists together
  DictGrowth growth_;                                          // of all dicts
};

}  // namespace lockstep::checkpoint
