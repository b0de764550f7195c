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
  // Whether there is only space between this place and the line's beginning.
  bool begins_line(std::size_t place) const {
    const std::size_t before = text_.substr(0, place).find_last_not_of(" \t\r");
    return before != std::string_view::npos && text_[before] == '\n';
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

  // A sum of products.
  Result<TextValue> value(int depth) {
    skip();
    const std::size_t begin = at_;
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue sum, product(depth));
    for (;;) {
      const bool adds = take('+');
      if (!adds && !take('-')) return sum;
      LOCKSTEP_RETURN_IF_ERROR(check_number(sum, begin));
      skip();
      const std::size_t next_begin = at_;
      LOCKSTEP_ASSIGN_OR_RETURN(const TextValue next, product(depth));
      LOCKSTEP_RETURN_IF_ERROR(check_number(next, next_begin));
      sum.number += adds ? next.number : -next.number;
    }
  }

  // As Python's: 1.0 // 0.1 is 9, because 0.1 is a little more than a tenth.
  static double floor_quotient(double dividend, double divisor) {
    const double rest = std::fmod(dividend, divisor);
    const double quotient = std::round((dividend - rest) / divisor);
    return rest != 0 && (rest < 0) != (divisor < 0) ? quotient - 1 : quotient;
  }

  Result<TextValue> product(int depth) {
    const std::size_t begin = at_;
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue found, factor(depth));
    for (;;) {
      const bool divides = take('/');
      const bool floors = divides && peek() == '/';
      if (floors) ++at_;
      if (!divides && !take('*')) return found;
      skip();
      const std::size_t next_begin = at_;
      LOCKSTEP_ASSIGN_OR_RETURN(const TextValue next, factor(depth));
      if (!divides && (found.kind == TextValue::Kind::kList || next.kind == TextValue::Kind::kList)) {
        LOCKSTEP_RETURN_IF_ERROR(repeat(found, next, begin));
        continue;
      }
      LOCKSTEP_RETURN_IF_ERROR(check_number(found, begin));
      LOCKSTEP_RETURN_IF_ERROR(check_number(next, next_begin));
      if (divides && next.number == 0) return fail_at(next_begin, "a divisor other than 0");
      if (floors) {
        found.number = floor_quotient(found.number, next.number);
      } else {
        found.number = divides ? found.number / next.number : found.number * next.number;
      }
    }
  }

  Result<TextValue> factor(int depth) {
    bool has_sign = false;
    bool negative = false;
    for (; peek() == '+' || peek() == '-'; skip()) {
      has_sign = true;
      negative ^= peek() == '-';
      ++at_;
    }
    const std::size_t begin = at_;
    LOCKSTEP_ASSIGN_OR_RETURN(TextValue found, operand(depth));
    if (has_sign) LOCKSTEP_RETURN_IF_ERROR(check_number(found, begin));
    if (negative) found.number = -found.number;
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
    const std::size_t begin = at_;
    LOCKSTEP_RETURN_IF_ERROR(items(found, ')', depth, comma));
    if (found.word == "int" || found.word == "float") return converted(found, begin);
    found.shown = found.items.empty() && begins_line(at_ - 1);
    gather_shown(found);
    if (found.shown && peek() == '(') {  // RandomChoice(...)(p=None)
      ++at_;
      LOCKSTEP_RETURN_IF_ERROR(items(found, ')', depth, comma));
    }
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
    const char* begin = text_.data() + at_;
    if (std::isdigit(static_cast<unsigned char>(peek())) == 0 && peek() != '.') return fail("a value");  // not "inf"
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), found.number);
    if (error != std::errc()) return fail("a value");
    at_ += static_cast<std::size_t>(end - begin);
    return found;
  }

  Status check_number(const TextValue& operand, std::size_t begin) {
    return operand.kind == TextValue::Kind::kNumber ? Status() : fail_at(begin, "a number");
  }

  // int(3.5) or float(3).
  Result<TextValue> converted(const TextValue& call, std::size_t begin) {
    const bool is_number = call.items.size() == 1 && call.items[0].kind == TextValue::Kind::kNumber;
    if (!is_number || !call.names[0].empty()) return fail_at(begin, "one number");
    TextValue number = call.items[0];
    if (call.word == "int") number.number = std::trunc(number.number);
    return number;
  }

  // As in "[0.5] * 3" or "3 * [0.5]", for lists of numbers.
  Status repeat(TextValue& list, TextValue times, std::size_t begin) {
    if (list.kind == TextValue::Kind::kNumber) std::swap(list, times);
    const auto is_number = [](const TextValue& item) { return item.kind == TextValue::Kind::kNumber; };
    constexpr std::size_t kMostItems = 1000;  // repeated lists may be repeated again
    if (!is_number(times) || list.items.size() > kMostItems / 3 ||
        !std::all_of(list.items.begin(), list.items.end(), is_number) ||
        (times.number != 1 && times.number != 2 && times.number != 3)) {
      return fail_at(begin, "a list of numbers, 1, 2 or 3 times");
    }
    const std::vector<TextValue> once = list.items;
    for (int i = 1; i < times.number; ++i) list.items.insert(list.items.end(), once.begin(), once.end());
    list.names.resize(list.items.size());
    return {};
  }

  // The items up to `close`; those of a call may have names. `comma`: whether there was one. print() shows transforms
  // of a call without commas, each on a line of its own.
  Status items(TextValue& into, char close, int depth, bool& comma) {
    bool needs_transform = false;  // there was a new line instead of a comma
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
      if (name.empty() && after_name && !needs_transform) return fail("NAME=VALUE after a name");
      LOCKSTEP_ASSIGN_OR_RETURN(TextValue item, value(depth + 1));
      if (needs_transform && (item.kind != TextValue::Kind::kCall || !name.empty()))
        return fail_at(begin, fmt::format("',' or '{}'", close));
      into.items.push_back(std::move(item));
      into.names.push_back(std::move(name));
      needs_transform = false;
      if (take(',')) {
        comma = true;
      } else if (peek() != close) {
        needs_transform = into.kind == TextValue::Kind::kCall && begins_line(at_);
        if (!needs_transform) return fail(fmt::format("',' or '{}'", close));
      }
    }
    return {};
  }

  // Makes one list of the transforms that are the arguments of a call: its parameter `transforms`.
  static void gather_shown(TextValue& call) {
    TextValue list;
    list.kind = TextValue::Kind::kList;
    TextValue gathered = call;
    gathered.items.clear();
    gathered.names.clear();
    for (std::size_t i = 0; i < call.items.size(); ++i) {
      if (call.names[i].empty() && call.items[i].kind != TextValue::Kind::kCall) return;
      TextValue& into = call.names[i].empty() ? list : gathered;
      into.items.push_back(call.items[i]);
      into.names.push_back(call.names[i]);
    }
    if (list.items.empty()) return;
    gathered.items.push_back(std::move(list));
    gathered.names.emplace_back("transforms");
    gathered.shown = true;
    call = std::move(gathered);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Result<TextValue> parse_call(std::string_view text) {
  return Parser(text).whole();
}

}  // namespace lockstep::data
