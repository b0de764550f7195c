#include "active_message.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {

std::string pack_header(const ActiveMessageHeader& header, const std::string& token) {
  return token + std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

std::optional<ActiveMessageHeader> unpack_header(std::string_view text, const std::string& token, int group_size) {
  ActiveMessageHeader header;
  if (text.size() != token.size() + sizeof header || !text.starts_with(token)) return std::nullopt;
  std::memcpy(&header, text.data() + token.size(), sizeof header);
  if (header.source < 0 || header.source >= group_size) return std::nullopt;
  return header;
}

std::string pack_news(const std::vector<RankNews>& news) {
  std::string text;
  for (const RankNews& one : news) {
    text.append(reinterpret_cast<const char*>(&one.call), sizeof one.call);
    text += one.condition;
    text += '\0';
  }
  return text;
}

std::vector<RankNews> unpack_news(std::string_view text, std::size_t count) {
  std::vector<RankNews> news;
  while (news.size() < count) {
    RankNews one;
    const std::size_t end = text.find('\0', std::min(sizeof one.call, text.size()));
    if (end == std::string_view::npos) break;
    std::memcpy(&one.call, text.data(), sizeof one.call);
    one.condition = text.substr(sizeof one.call, end - sizeof one.call);
    news.push_back(std::move(one));
    text.remove_prefix(end + 1);
  }
  return news;
}

}  // namespace lockstep::comm
