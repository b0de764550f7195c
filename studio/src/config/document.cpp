#include "config/document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace lockstep::config {
namespace {

// A configuration is a few levels deep. The limit keeps hostile files from growing the stack.
constexpr std::size_t kMostDepth = 32;

// Thrown through the parser, which has no other way to be stopped.
struct Stop {};

// Places in a text, by the parser's marks, which count lines and bytes from 0.
class Lines {
 public:
  explicit Lines(const std::string& text) : text_(text), begins_{text.starts_with("\xef\xbb\xbf") ? 3U : 0U} {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') begins_.push_back(i + 1);
    }
  }

  // Columns count characters.
  Place place_of(const YAML::Mark& mark) {
    const std::size_t end = offset_of(mark);
    const std::size_t begin = end - std::min<std::size_t>(end, static_cast<std::size_t>(std::max(0, mark.column)));
    // Marks come almost in order. To count from the beginning of a long line each time would take minutes.
    if (begin != begin_ || end < counted_) {
      begin_ = counted_ = begin;
      column_ = 1;
    }
    for (; counted_ < end; ++counted_) {
      if ((static_cast<unsigned char>(text_[counted_]) & 0xc0) != 0x80) ++column_;
    }
    return {std::max(0, mark.line) + 1, column_};
  }

  // Whether the quote that begins there ends; true where none begins.
  bool quote_is_closed(const YAML::Mark& mark) const {
    std::size_t at = offset_of(mark);
    const char quote = at < text_.size() ? text_[at] : '\0';
    if (quote != '"' && quote != '\'') return true;
    for (++at; at < text_.size(); ++at) {
      const bool two = quote == '"' ? text_[at] == '\\' : text_.compare(at, 2, "''") == 0;
      if (two) {
        ++at;
      } else if (text_[at] == quote) {
        return true;
      }
    }
    return false;
  }

 private:
  std::size_t offset_of(const YAML::Mark& mark) const {
    const std::size_t line = std::min(static_cast<std::size_t>(std::max(0, mark.line)), begins_.size() - 1);
    return std::min(begins_[line] + static_cast<std::size_t>(std::max(0, mark.column)), text_.size());
  }

  const std::string& text_;
  std::vector<std::size_t> begins_;  // where each line begins
  // The line of the last mark: where it begins, how far its characters are counted, and the column there.
  std::size_t begin_ = 0;
  std::size_t counted_ = 0;
  int column_ = 1;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, Problems& problems) : problems_(problems), lines_(text) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    Node node;
    node.place = lines_.place_of(mark);
    finish(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    problems_.add(lines_.place_of(mark), "aliases (*name) and merge keys are not supported; write the value out");
    Node node;
    node.place = lines_.place_of(mark);
    alias_ = true;
    finish(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    check_tag(mark, tag);
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = value;
    node.quoted = tag == "!";
    node.place = lines_.place_of(mark);
    // The parser takes the end of the file for the end of a quote.
    if (node.quoted && !lines_.quote_is_closed(mark)) {
      problems_.add(node.place, "this quote is not closed");
      throw Stop();
    }
    finish(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, tag, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  // A list or a map that is not complete yet.
  struct Frame {
    Node node;
    std::optional<Member> key;                   // of a map: the key whose value comes next
    std::unordered_map<std::string, int> lines;  // of a map: the line of each key
  };

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    // The parser gives plain values the tag "?" or "", and values in quotes the tag "!".
    if (tag.size() > 1) {
      problems_.add(lines_.place_of(mark),
                    fmt::format("the tag {} is not supported; write the value alone", options::shown(tag)));
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, Node::Kind kind) {
    if (tag != "!") check_tag(mark, tag);
    if (frames_.size() >= kMostDepth) {
      problems_.add(lines_.place_of(mark), fmt::format("more than {} levels within one another", kMostDepth));
      throw Stop();
    }
    Frame& frame = frames_.emplace_back();
    frame.node.kind = kind;
    frame.node.place = lines_.place_of(mark);
  }

  void close() {
    Node node = std::move(frames_.back().node);
    frames_.pop_back();
    finish(std::move(node));
  }

  void finish(Node node) {
    if (frames_.empty()) {
      root_ = std::move(node);
    } else if (Frame& frame = frames_.back(); frame.node.kind == Node::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.key) {
      start_member(frame, node);
    } else {
      frame.key->value = std::move(node);
      // The parser places a missing value where the next thing begins.
      if (frame.key->value.kind == Node::Kind::kNull) frame.key->value.place = frame.key->place;
      finish_member(frame);
    }
    alias_ = false;
  }

  void start_member(Frame& frame, const Node& key) {
    if (key.kind != Node::Kind::kScalar && !alias_) problems_.add(key.place, "a key must be a word");
    frame.key.emplace(Member{key.text, key.place, {}});
  }

  void finish_member(Frame& frame) {
    Member member = std::move(*frame.key);
    frame.key.reset();
    if (member.name.empty()) return;  // told already, or a key without a name
    if (member.name == "<<") {
      if (!alias_) problems_.add(member.place, "merge keys (<<) are not supported; write the keys out");
      return;
    }
    const auto [first, is_new] = frame.lines.emplace(member.name, member.place.line);
    if (!is_new) {
      problems_.add(member.place, fmt::format("the key {} is here twice, first on line {}; remove one",
                                              options::shown(member.name), first->second));
      return;
    }
    frame.node.members.push_back(std::move(member));
  }

  Problems& problems_;
  Lines lines_;
  std::vector<Frame> frames_;
  Node root_;
  bool alias_ = false;  // the node that is being finished is an alias
};

// The length of the UTF-8 character at `begin`; 0: there is none, or a control character that no text has.
std::size_t character_at(std::string_view text, std::size_t begin) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(begin);
  if (lead < 0x80) return lead >= 0x20 ? (lead != 0x7f) : (lead == '\t' || lead == '\n' || lead == '\r');
  const std::size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0 || begin + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(begin + i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

bool is_text(std::string_view text, Problems& problems) {
  Place place;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_at(text, i);
    if (length == 0) {
      problems.add(place,
                   fmt::format("this is not a text in UTF-8: byte 0x{:02x}", static_cast<unsigned char>(text[i])));
      return false;
    }
    if (text[i] == '\n') place = {place.line + 1, 0};
    ++place.column;
    i += length;
  }
  return true;
}

}  // namespace

std::optional<Node> parse_document(const std::string& text, Problems& problems) {
  if (!is_text(text, problems)) return std::nullopt;
  TreeBuilder builder(text, problems);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    TreeBuilder second(text, problems);
    if (parser.HandleNextDocument(second)) {
      problems.add(second.take().place, "a second document (after ---) is not supported");
    }
  } catch (const Stop&) {
    return std::nullopt;
  } catch (const YAML::Exception& error) {
    problems.add(Lines(text).place_of(error.mark), fmt::format("not YAML: {}", error.msg));
    return std::nullopt;
  } catch (const std::exception& error) {
    problems.add(Place(), fmt::format("the file could not be read as YAML: {}", error.what()));
    return std::nullopt;
  }
  Node root = builder.take();
  if (root.kind == Node::Kind::kNull) root.kind = Node::Kind::kMap;
  return root;
}

}  // namespace lockstep::config
