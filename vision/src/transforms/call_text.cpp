#include "transforms/call_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace lockstep::data {
namespace {

constexpr int kDeepest = 20;

bool begins_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';  // nearest-exact
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<TextValue> whole() {
    skip();
    if (!begins_word(peek())) return fail("the name of a transform");
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue call, value(0));
    if (call.kind == TextValue::Kind::kWord) call.kind = TextValue::Kind::kCall;
    skip();
    if (at_ < text_.size()) return fail("the end");
    return call;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) ++at_;
  }
  bool take(char wanted) {
    skip();
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  Status fail(std::string_view expected) const {
    const std::string found = at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : std::string("the end");
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("expected {} at character {}, found {}", expected, at_ + 1, found));
  }

  std::string word() {
    const std::size_t begin = at_;
    while (in_word(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Result<TextValue> value(int depth) {
    if (depth > kDeepest) return fail(fmt::format("at most {} lists in one another", kDeepest));
    skip();
    TextValue found;
    const char first = peek();
    if (first == '\'' || first == '"') return quoted(first);
    if (first == '(' || first == '[') {
      ++at_;
      found.kind = TextValue::Kind::kList;
      LOCKSTEP_RETURN_IF_ERROR(items(found, first == '(' ? ')' : ']', depth));
      LOCKSTEP_RETURN_IF_ERROR(repeat(found));
      return found;
    }
    if (begins_word(first)) {
      found.word = word();
      if (!take('(')) return found;
      found.kind = TextValue::Kind::kCall;
      LOCKSTEP_RETURN_IF_ERROR(items(found, ')', depth));
      return found;
    }
    return number();
  }

  Result<TextValue> quoted(char quote) {
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return fail("a closing quote for the one");
    TextValue found;
    found.word = std::string(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return found;
  }

  // As in "[0.5] * 3", for lists of numbers.
  Status repeat(TextValue& list) {
    const auto is_number = [](const TextValue& item) { return item.kind == TextValue::Kind::kNumber; };
    if (!std::all_of(list.items.begin(), list.items.end(), is_number) || !take('*')) return {};
    double times = 0;
    LOCKSTEP_RETURN_IF_ERROR(take_number(times));
    if (times != 1 && times != 2 && times != 3) return fail("a list 1, 2 or 3 times");
    const std::vector<TextValue> once = list.items;
    for (int i = 1; i < times; ++i) list.items.insert(list.items.end(), once.begin(), once.end());
    list.names.resize(list.items.size());
    return {};
  }

  Status take_number(double& into) {
    skip();
    if (peek() == '+') ++at_;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), into);
    if (error != std::errc()) return fail("a value");
    at_ += static_cast<std::size_t>(end - begin);
    return {};
  }

  // A number, or products and quotients as in "3/4".
  Result<TextValue> number() {
    TextValue found;
    found.kind = TextValue::Kind::kNumber;
    LOCKSTEP_RETURN_IF_ERROR(take_number(found.number));
    for (;;) {
      const bool divides = take('/');
      if (!divides && !take('*')) return found;
      double factor = 0;
      LOCKSTEP_RETURN_IF_ERROR(take_number(factor));
      found.number = divides ? found.number / factor : found.number * factor;
    }
  }

  // The items up to `close`; those of a call may have names.
  Status items(TextValue& into, char close, int depth) {
    while (!take(close)) {
      std::string name;
      const std::size_t begin = at_;
      if (into.kind == TextValue::Kind::kCall && begins_word(peek())) {
        name = word();
        if (!take('=')) {
          name.clear();
          at_ = begin;
        }
      }
      if (name.empty() && !into.names.empty() && !into.names.back().empty()) return fail("NAME=VALUE after a name");
      LOCKSTEP_ASSIGN_OR_RETURN(TextValue item, value(depth + 1));
      into.items.push_back(std::move(item));
      into.names.push_back(std::move(name));
      if (!take(',') && peek() != close) return fail(fmt::format("',' or '{}'", close));
    }
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Result<TextValue> parse_call(std::string_view text) {
  return Parser(text).whole();
}

}  // namespace lockstep::data
