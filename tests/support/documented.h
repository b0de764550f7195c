// Code that documents quote, against a source file that compiles.
#pragma once

#include <cstddef>
#include <filesystem>

namespace lockstep::test {

// Fails the current test for every line of code in `document` that `source` does not have: in a page those of its cpp
// blocks, in a header those of its comments that are indented by three. White space does not count, nor what follows
// "..." or a comment. Answers how many lines were compared.
std::size_t expect_quotes_of(const std::filesystem::path& source, const std::filesystem::path& document);

}  // namespace lockstep::test
