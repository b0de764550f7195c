#include "launch/tail.h"

#include <algorithm>

namespace lockstep::launch {

void Tail::append(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) bytes.remove_prefix(bytes.size() - kMaxBytes);
  bytes_ += bytes;
  // Trimming at twice the limit moves each byte about once.
  if (bytes_.size() > 2 * kMaxBytes) bytes_.erase(0, bytes_.size() - kMaxBytes);
}

std::vector<std::string> Tail::lines() const {
  std::string_view text = bytes_;
  if (text.size() > kMaxBytes) text.remove_prefix(text.size() - kMaxBytes);
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(visible_part(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return lines;
}

std::string_view visible_part(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t last = line.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

}  // namespace lockstep::launch
