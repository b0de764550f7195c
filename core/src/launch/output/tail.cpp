#include "launch/output/tail.h"

#include <algorithm>

namespace lockstep::launch {
namespace {

// Takes the last line away from `text`.
std::string_view take_last_line(std::string_view& text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  const std::size_t begin = text.rfind('\n') + 1;  // 0 where there is none
  const std::string_view line = text.substr(begin);
  text = text.substr(0, begin);
  return visible_part(line);
}

// Of a call stack as c10 and as torch's symbolizer write it.
bool is_of_stack(std::string_view line) {
  return line.empty() || line.starts_with("frame #") || line.starts_with("#") || line == "C++ CapturedTraceback:";
}

// The message at the end of `text`: what C++'s run-time library or Python says of an uncaught exception; else the last
// line.
std::string_view last_message(std::string_view text) {
  constexpr std::string_view kWhat = "\n  what():  ";
  constexpr std::string_view kTraceback = "Traceback (most recent call last):\n";
  const std::size_t what = text.rfind(kWhat);
  const std::size_t traceback = text.rfind(kTraceback);
  if (what != std::string_view::npos && (traceback == std::string_view::npos || traceback < what))
    return text.substr(what + kWhat.size());
  if (traceback == std::string_view::npos) return take_last_line(text);
  text.remove_prefix(traceback + kTraceback.size());
  // Calls and their source lines are indented, and the message is not.
  while (text.starts_with(' ')) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

}  // namespace

void Tail::append(std::string_view bytes) {
  if (bytes.size() > kNeeded) bytes.remove_prefix(bytes.size() - kNeeded);
  bytes_ += bytes;
  // Trimming at twice the limit moves each byte about once.
  if (bytes_.size() > 2 * kNeeded) bytes_.erase(0, bytes_.size() - kNeeded);
}

std::vector<std::string> Tail::lines() const {
  std::string_view text = end_of_text(bytes_, kMaxBytes);
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(visible_part(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
  return lines;
}

std::string Tail::message_before_stack() const {
  std::string_view text = bytes_;
  std::string_view line;
  do line = take_last_line(text);
  while (!text.empty() && is_of_stack(line));
  if (!line.starts_with("Exception raised from ")) return {};
  text = last_message(text);
  std::vector<std::string_view> lines;
  while (!text.empty() && lines.size() < kMaxLines) lines.push_back(take_last_line(text));
  std::string message;
  for (auto next = lines.rbegin(); next != lines.rend(); ++next)
    message += (message.empty() ? "" : "\n") + std::string(*next);
  return std::string(whole_letters(std::string_view(message).substr(0, kMaxBytes)));
}

std::string_view end_of_text(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  text.remove_prefix(text.size() - bytes);
  constexpr std::size_t kMostLaterBytes = 3;  // of a letter
  std::size_t cut = 0;
  while (cut < std::min(kMostLaterBytes, text.size()) && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U)
    ++cut;
  return text.substr(cut);
}

std::string_view whole_letters(std::string_view text) {
  constexpr std::size_t kMostBytes = 4;
  for (std::size_t count = 1; count <= std::min(kMostBytes, text.size()); ++count) {
    const auto byte = static_cast<unsigned char>(text[text.size() - count]);
    if ((byte & 0xC0U) == 0x80U) continue;  // not the first of its letter
    const std::size_t expected = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return text.substr(0, text.size() - (count < expected ? count : 0));
  }
  return text;
}

std::string fit_to_columns(std::string_view text, std::size_t columns) {
  std::string fitting;
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text[i] == '\x1b' && end < text.size() && text[end] == '[') {
      end = std::min(text.find_first_not_of("0123456789;?", end + 1), text.size() - 1) + 1;
      fitting += text.substr(i, end - i);  // colours count no columns, and those at the end switch off
      i = end;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
    // U+1100 begins the letters of two columns; those of three bytes before U+2E80 are bars, arrows and the like.
    const bool wide =
        byte >= 0xE3U || (byte == 0xE2U && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) >= 0xBAU);
    used += wide ? 2 : 1;
    if (used <= columns) fitting += text.substr(i, end - i);
    i = end;
  }
  return fitting;
}

std::string_view visible_part(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t last = line.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

}  // namespace lockstep::launch
