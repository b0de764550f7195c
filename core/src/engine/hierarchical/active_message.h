// The format of the active messages of a group: the group's token, a header, and data or text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

struct ActiveMessageHeader {
  // kMessage is point-to-point data (HierarchicalMailbox); all others are for ControlMessages. kCause and kGoodbye
  // carry the sender's known cause (failure.h).
  enum class Type : std::uint32_t { kMessage, kHello, kNews, kAsk, kAbort, kCause, kGoodbye };
  Type type = Type::kMessage;
  std::int32_t source = 0;
  std::int64_t tag = 0;  // of a message its tag; of an abort its error code
};

std::string pack_header(const ActiveMessageHeader& header, const std::string& token);
// Nothing if the message is not from a member of the group. Other programs can reach the port, but they do not know the
// token.
std::optional<ActiveMessageHeader> unpack_header(std::string_view text, const std::string& token, int group_size);

// News of one rank.
struct RankNews {
  std::uint64_t call = 0;  // call_word() of its last call
  std::string condition;   // why it stands still; empty: it runs, or nobody asked
};
std::string pack_news(const std::vector<RankNews>& news);
// The news of `count` ranks, or of the first of them if the text ends too early.
std::vector<RankNews> unpack_news(std::string_view text, std::size_t count);

}  // namespace lockstep::comm
