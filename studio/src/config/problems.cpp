#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "config/document.h"

namespace lockstep::config {

std::string Problems::name_of(Place place) const {
  return fmt::format("{}:{}:{}", file_, place.line, place.column);
}

void Problems::add(Place place, std::string_view message) {
  in_file_.push_back({place, fmt::format("{}: {}", name_of(place), message)});
}

void Problems::add(std::string_view message) {
  elsewhere_.emplace_back(message);
}

std::string Problems::text(std::size_t most) const {
  std::vector<InFile> sorted = in_file_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const InFile& a, const InFile& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  std::vector<std::string> lines;
  lines.reserve(sorted.size());
  for (InFile& problem : sorted) lines.push_back(std::move(problem.text));
  lines.insert(lines.end(), elsewhere_.begin(), elsewhere_.end());
  std::string all;
  for (std::size_t i = 0; i < std::min(most, lines.size()); ++i) all += (i == 0 ? "" : "\n") + lines[i];
  if (lines.size() > most) all += fmt::format("\nand {} more", lines.size() - most);
  return all;
}

}  // namespace lockstep::config
