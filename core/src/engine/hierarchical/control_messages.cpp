#include "control_messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fault_point.h"

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
    text.append(reinterpret_cast<const char*>(&one.place), sizeof one.place);
    for (const std::string& words : {one.condition, one.waits_for}) {
      text += words;
      text += '\0';
    }
  }
  return text;
}

std::vector<RankNews> unpack_news(std::string_view text, std::size_t count) {
  std::vector<RankNews> news;
  while (news.size() < count) {
    RankNews one;
    constexpr std::size_t kHead = sizeof one.call + sizeof one.place;
    const std::size_t middle = text.find('\0', std::min(kHead, text.size()));
    if (middle == std::string_view::npos) break;
    const std::size_t end = text.find('\0', middle + 1);
    if (end == std::string_view::npos) break;
    std::memcpy(&one.call, text.data(), sizeof one.call);
    std::memcpy(&one.place, text.data() + sizeof one.call, sizeof one.place);
    one.place.site.back() = one.place.label.back() = 0;
    one.condition = text.substr(kHead, middle - kHead);
    one.waits_for = text.substr(middle + 1, end - middle - 1);
    news.push_back(std::move(one));
    text.remove_prefix(end + 1);
  }
  return news;
}

void ControlMessages::tell_neighbours(Type type, const std::string& text, std::int64_t value) {
  LOCKSTEP_FAULT_POINT("hierarchical: message");
  const std::string head = pack_header({type, context_.rank, value}, context_.token);
  const bool ends = type == Type::kAbort || type == Type::kGoodbye;
  for (int rank = 0; rank < context_.size(); ++rank) {
    const bool to =
        context_.topology.are_neighbours(context_.rank, rank) || (ends && context_.transport.is_connected(rank));
    if (!to || peers_.told(rank).left || context_.transport.is_lost(rank)) continue;
    Outgoing& message = outgoing_.emplace_back(Outgoing{TransportRequest(), text});
    context_.transport.post(rank, head, message.text.data(), message.text.size(), message.request);
  }
}

void ControlMessages::reach(int rank) {
  if (rank == context_.rank || context_.is_local(rank) || context_.transport.is_connected(rank)) return;
  Outgoing& message = outgoing_.emplace_back();
  context_.transport.post(rank, pack_header({Type::kHello, context_.rank, 0}, context_.token), nullptr, 0,
                          message.request);
}

void ControlMessages::send_news(bool conditions) {
  std::vector<RankNews> news;
  for (const int rank : context_.local_ranks()) {
    news.push_back({board_.latest(rank), conditions ? peers_.condition(rank) : std::string(), peers_.waits_for(rank),
                    board_.place(rank).value_or(SentPlace())});
  }
  tell_neighbours(Type::kNews, pack_news(news), conditions ? 1 : 0);
}

void ControlMessages::take_news(int source, bool conditions, std::string_view text) {
  const std::vector<int>& ranks = context_.topology.ranks(context_.topology.machine_of(source));
  const std::vector<RankNews> news = unpack_news(text, ranks.size());
  if (!news.empty()) peers_.told(source).answered = true;
  for (std::size_t i = 0; i < news.size(); ++i) {
    if (news[i].place.is_known()) board_.note(ranks[i], news[i].call, news[i].place);
    board_.note(ranks[i], news[i].call);
    if (conditions) peers_.told(ranks[i]).condition = news[i].condition;
    peers_.told(ranks[i]).waits_for = news[i].waits_for;
  }
}

void ControlMessages::ask(bool gives_up) {
  peers_.forget_answers();
  send_news(/*conditions=*/false);
  tell_neighbours(Type::kAsk, "", gives_up ? 1 : 0);
}

void ControlMessages::arrived(const ActiveMessageHeader& header, std::string_view text) {
  Peers::Told& told = peers_.told(header.source);
  switch (header.type) {
    case Type::kHello: told.greeted = true; break;
    case Type::kGoodbye: told.left = true; [[fallthrough]];
    case Type::kCause:
      if (told.cause.empty()) told.cause = text;
      break;
    case Type::kAsk:
      asked_ = true;
      if (header.tag != 0) board_.note_giving_up(header.source);
      break;
    case Type::kAbort: reported_break_ = {static_cast<ErrorCode>(header.tag), std::string(text)}; break;
    case Type::kNews: take_news(header.source, header.tag != 0, text); break;
    case Type::kMessage: break;
  }
}

void ControlMessages::progress() {
  if (std::exchange(asked_, false)) send_news(/*conditions=*/true);
  while (!outgoing_.empty() && outgoing_.front().request.done) outgoing_.pop_front();
}

}  // namespace lockstep::comm
