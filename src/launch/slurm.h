// Parses Slurm's compact lists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// "node[07-12,20],login" -> "node07"; "a1b[2-3]c[04,05]" -> "a1b2c04". nullopt if the list is malformed.
std::optional<std::string> first_host(std::string_view node_list);

// "2(x3),1" -> {2, 2, 2, 1}. nullopt if malformed.
std::optional<std::vector<int>> tasks_per_node(std::string_view text);

}  // namespace lockstep::launch
