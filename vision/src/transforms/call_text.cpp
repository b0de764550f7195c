#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "transforms/text_arguments.h"

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

  Status fail_at(std::size_t place, std::string_view expected) {
    at_ = place;
    return fail(expected);
  }

  std::string word() {
    const std::size_t begin = at_;
    while (in_word(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // An operand, a quotient of two numbers, or a list that is repeated: 3/4, [0.5] * 3, 3 * [0.5].
  Result<TextValue> value(int depth) {
    skip();
    const std::size_t begin = at_;
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue found, operand(depth));
    const bool divides = take('/');
    if (!divides && !take('*')) return found;
    skip();
    const std::size_t next_begin = at_;
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue next, operand(depth));
    if (!divides) return repeated(std::move(found), std::move(next), begin);
    if (found.kind != TextValue::Kind::kNumber) return fail_at(begin, "a number");
    if (next.kind != TextValue::Kind::kNumber || next.number == 0) return fail_at(next_begin, "a divisor other than 0");
    found.number /= next.number;
    return found;
  }

  Result<TextValue> operand(int depth) {
    if (depth > kDeepest) return fail(fmt::format("at most {} lists in one another", kDeepest));
    TextValue found;
    const char first = peek();
    if (first == '\'' || first == '"') return quoted(first);
    if (first == '(' || first == '[') {
      ++at_;
      found.kind = TextValue::Kind::kList;
      bool comma = false;
      LOCKSTEP_RETURN_IF_ERROR(items(found, first == '(' ? ')' : ']', depth, comma));
      if (first == '(' && !comma && found.items.size() == 1) return TextValue(found.items.front());
      return found;
    }
    if (!begins_word(first)) return number();
    found.word = word();
    if (!take('(')) return found;
    found.kind = TextValue::Kind::kCall;
    bool comma = false;
    LOCKSTEP_RETURN_IF_ERROR(items(found, ')', depth, comma));
    return found;
  }

  Result<TextValue> quoted(char quote) {
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return fail("a closing quote for the one");
    TextValue found;
    found.word = std::string(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return found;
  }

  Result<TextValue> number() {
    TextValue found;
    found.kind = TextValue::Kind::kNumber;
    const bool negative = peek() == '-';
    if (negative || peek() == '+') ++at_;
    const char* begin = text_.data() + at_;
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0 && peek() != '.') return fail("a value");  // not "inf"
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), found.number);
    if (error != std::errc()) return fail("a value");
    if (negative) found.number = -found.number;
    at_ += static_cast<std::size_t>(end - begin);
    return found;
  }

  // As in "[0.5] * 3" or "3 * [0.5]", for lists of numbers.
  Result<TextValue> repeated(TextValue list, TextValue times, std::size_t begin) {
    if (list.kind == TextValue::Kind::kNumber) std::swap(list, times);
    const auto is_number = [](const TextValue& item) { return item.kind == TextValue::Kind::kNumber; };
    if (list.kind != TextValue::Kind::kList || !std::all_of(list.items.begin(), list.items.end(), is_number) ||
        !is_number(times) || (times.number != 1 && times.number != 2 && times.number != 3)) {
      return fail_at(begin, "a list of numbers, 1, 2 or 3 times");
    }
    const std::vector<TextValue> once = list.items;
    for (int i = 1; i < times.number; ++i) list.items.insert(list.items.end(), once.begin(), once.end());
    list.names.resize(list.items.size());
    return list;
  }

  // The items up to `close`; those of a call may have names. `comma`: whether there was one.
  Status items(TextValue& into, char close, int depth, bool& comma) {
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
      const bool after_name = !into.names.empty() && !into.names.back().empty();
      if (name.empty() && after_name) return fail("NAME=VALUE after a name");
      LOCKSTEP_ASSIGN_OR_RETURN(TextValue item, value(depth + 1));
      into.items.push_back(std::move(item));
      into.names.push_back(std::move(name));
      if (take(',')) {
        comma = true;
      } else if (peek() != close) {
        return fail(fmt::format("',' or '{}'", close));
      }
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
