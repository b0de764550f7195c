// How alike two words are, for errors that name the known word nearest to an unknown one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Of longer words only this many letters are compared.
inline constexpr std::size_t kComparedLetters = 64;

// How many letters must be inserted, removed, replaced or swapped with the next to make one word of the other. Capitals
// do not count, nor whether words are joined by '-' or '_'.
std::size_t word_distance(std::string_view one, std::string_view other);

// The nearest of the known words if it is near enough to be meant; empty: none is.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace lockstep
