#include "support/documented.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Without white space, which a formatter may move.
std::string squeezed(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

// As far as "..." or a comment.
std::string code_of(std::string line) {
  return squeezed(line.substr(0, std::min(line.find("..."), line.find("  //"))));
}

std::vector<std::string> quoted_lines(const fs::path& path) {
  constexpr std::string_view kInHeader = "//   ";
  const bool page = path.extension() == ".md";
  std::istringstream lines(text_of(path));
  std::vector<std::string> quoted;
  bool in_block = false;
  for (std::string line; std::getline(lines, line);) {
    if (page && line.starts_with("```")) {
      in_block = line == "```cpp";
    } else if (in_block) {
      quoted.push_back(line);
    } else if (!page && line.starts_with(kInHeader)) {
      quoted.push_back(line.substr(kInHeader.size()));
    }
  }
  return quoted;
}

}  // namespace

std::size_t expect_quotes_of(const fs::path& source, const fs::path& document) {
  const std::string here = squeezed(text_of(source));
  const std::vector<std::string> lines = quoted_lines(document);
  for (const std::string& line : lines) {
    EXPECT_NE(here.find(code_of(line)), std::string::npos) << document << ": " << line;
  }
  return lines.size();
}

}  // namespace lockstep::test
