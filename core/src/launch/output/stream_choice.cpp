#include "launch/output/stream_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/number_text.h"

namespace lockstep::launch {
namespace {

std::optional<Streams> parse_streams(std::string_view text) {
  const std::optional<int> value = number_from_text<int>(text);
  if (!value || *value < 0 || *value > 3) return std::nullopt;
  return static_cast<Streams>(*value);
}

}  // namespace

Streams StreamChoice::of(int local_rank) const {
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? everyone : found->second;
}

bool StreamChoice::any() const {
  return everyone != Streams::kNone || std::any_of(by_local_rank.begin(), by_local_rank.end(),
                                                   [](const auto& entry) { return entry.second != Streams::kNone; });
}

Result<StreamChoice> parse_stream_choice(std::string_view text) {
  const Status wrong(ErrorCode::kInvalidArgument,
                     fmt::format("'{}' names no streams; expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all "
                                 "workers, or a list RANK:STREAMS such as 0:1,1:3",
                                 text));
  StreamChoice choice;
  if (const std::optional<Streams> streams = parse_streams(text)) {
    choice.everyone = *streams;
    return choice;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) return wrong;
    const std::optional<int> rank = number_from_text<int>(entry.substr(0, colon));
    const std::optional<Streams> streams = parse_streams(entry.substr(colon + 1));
    if (!rank || *rank < 0 || !streams || !choice.by_local_rank.emplace(*rank, *streams).second) return wrong;
    begin = end + 1;
  }
  return choice;
}

}  // namespace lockstep::launch
