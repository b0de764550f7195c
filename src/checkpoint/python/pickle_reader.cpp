#include "pickle_reader.h"

#include <fmt/format.h>

#include <bit>
#include <unordered_map>
#include <utility>

#include "base/printable.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kMostValues = std::size_t{1} << 24;
constexpr std::size_t kMostItems = 4 * kMostValues;
constexpr std::size_t kMostNameBytes = 200;

// Opcodes, named as in Python's pickletools.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

class PickleReader {
 public:
  PickleReader(PickleInput& input, FindPickleName find_name) : input_(input), find_name_(find_name) {}

  PickleGraph read() {
    while (true) {
      at_ = input_.position();
      const std::uint8_t opcode = input_.byte();
      if (opcode == kStop) break;
      if (!constant(opcode) && !container(opcode) && !memory(opcode) && !object(opcode)) {
        unsupported(fmt::format("the pickle opcode 0x{:02x}", opcode));
      }
    }
    graph_.root = pop();
    return std::move(graph_);
  }

 private:
  [[noreturn]] void corrupt(std::string_view what) const {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("damaged: at byte {} its pickle {}", at_, what));
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        fmt::format("at byte {} it uses {}, which is refused: only tensors, numbers, text, lists, tuples and dicts are "
                    "read, and nothing in a file is executed. Save a state_dict() of such values in Python",
                    at_, what));
  }

  PickleId add(PickleValue value) {
    if (graph_.values.size() == kMostValues) corrupt(fmt::format("has over {} values", kMostValues));
    graph_.values.push_back(value);
    return static_cast<PickleId>(graph_.values.size() - 1);
  }
  void push(PickleValue value) { stack_.push_back(add(value)); }
  void push_integer(PickleKind kind, std::int64_t integer) {
    PickleValue value{kind, {}};
    value.integer = integer;
    push(value);
  }
  void push_text(PickleKind kind, std::string text) {
    PickleValue value{kind, {}};
    value.place = graph_.texts.size();
    graph_.texts.push_back(std::move(text));
    push(value);
  }
  void push_list(PickleKind kind, std::vector<PickleId> items) {
    count_items(items.size());
    PickleValue value{kind, {}};
    value.place = graph_.lists.size();
    graph_.lists.push_back(std::move(items));
    push(value);
  }

  // Arguments of calls are copied, so that a short pickle could ask for much memory.
  void count_items(std::size_t more) {
    items_ += more;
    if (items_ > kMostItems) corrupt(fmt::format("has over {} items in lists and dicts", kMostItems));
  }

  // The top of the stack, above the newest mark.
  PickleId top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) corrupt("takes a value where there is none");
    return stack_.back();
  }
  PickleId pop() {
    const PickleId id = top();
    stack_.pop_back();
    return id;
  }
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) corrupt("takes values up to a mark, but there is no mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleId> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<PickleId> pop_some(std::size_t count) {
    std::vector<PickleId> items(count);
    while (count > 0) items[--count] = pop();
    return items;
  }

  std::string text_of(PickleId id, const char* what) const {
    if (graph_.at(id).kind != PickleKind::kText) corrupt(fmt::format("has {} that is no text", what));
    return graph_.text(id);
  }

  bool constant(std::uint8_t opcode) {
    switch (opcode) {
      case kNone: push({}); return true;
      case kNewTrue: push_integer(PickleKind::kBool, 1); return true;
      case kNewFalse: push_integer(PickleKind::kBool, 0); return true;
      case kBinInt: push_integer(PickleKind::kInt, static_cast<std::int32_t>(input_.number(4))); return true;
      case kBinInt1: push_integer(PickleKind::kInt, input_.byte()); return true;
      case kBinInt2: push_integer(PickleKind::kInt, static_cast<std::int64_t>(input_.number(2))); return true;
      case kLong1: push_integer(PickleKind::kInt, long_integer(input_.byte())); return true;
      case kBinFloat: {
        PickleValue value{PickleKind::kFloat, {}};
        value.number = std::bit_cast<double>(__builtin_bswap64(input_.number(8)));
        push(value);
        return true;
      }
      case kBinUnicode:
      case kBinString: push_text(PickleKind::kText, input_.bytes(input_.number(4))); return true;
      case kShortBinUnicode:
      case kShortBinString: push_text(PickleKind::kText, input_.bytes(input_.byte())); return true;
      case kBinUnicode8: push_text(PickleKind::kText, input_.bytes(input_.number(8))); return true;
      case kBinBytes: push_text(PickleKind::kBytes, input_.bytes(input_.number(4))); return true;
      case kShortBinBytes: push_text(PickleKind::kBytes, input_.bytes(input_.byte())); return true;
      default: return false;
    }
  }

  // Two's complement.
  std::int64_t long_integer(std::size_t count) {
    if (count > 8) unsupported("an integer of over 64 bits");
    if (count == 0) return 0;
    std::uint64_t value = input_.number(count);
    if (count < 8 && (value >> (8 * count - 1)) != 0) value |= ~std::uint64_t{0} << (8 * count);
    return static_cast<std::int64_t>(value);
  }

  bool container(std::uint8_t opcode) {
    switch (opcode) {
      case kMark:
        marks_.push_back(stack_.size());
        if (marks_.size() > kMostValues) corrupt(fmt::format("has over {} marks", kMostValues));
        return true;
      case kPop: pop(); return true;
      case kEmptyList:
      case kEmptySet: push_list(PickleKind::kList, {}); return true;
      case kEmptyDict: push_list(PickleKind::kDict, {}); return true;
      case kEmptyTuple: push_list(PickleKind::kTuple, {}); return true;
      case kTuple: push_list(PickleKind::kTuple, pop_to_mark()); return true;
      case kTuple1: push_list(PickleKind::kTuple, pop_some(1)); return true;
      case kTuple2: push_list(PickleKind::kTuple, pop_some(2)); return true;
      case kTuple3: push_list(PickleKind::kTuple, pop_some(3)); return true;
      case kAppend: extend(PickleKind::kList, pop_some(1)); return true;
      case kAppends:
      case kAddItems: extend(PickleKind::kList, pop_to_mark()); return true;
      case kSetItem: extend(PickleKind::kDict, pop_some(2)); return true;
      case kSetItems: extend(PickleKind::kDict, pop_to_mark()); return true;
      default: return false;
    }
  }

  void extend(PickleKind kind, const std::vector<PickleId>& items) {
    const PickleId target = top();
    if (graph_.at(target).kind != kind) {
      corrupt(fmt::format("adds to something that is no {}", kind == PickleKind::kList ? "list" : "dict"));
    }
    if (kind == PickleKind::kDict && items.size() % 2 != 0) corrupt("adds a key without a value to a dict");
    count_items(items.size());
    std::vector<PickleId>& list = graph_.items(target);
    list.insert(list.end(), items.begin(), items.end());
  }

  bool memory(std::uint8_t opcode) {
    switch (opcode) {
      case kBinPut: remember(input_.byte()); return true;
      case kLongBinPut: remember(static_cast<std::uint32_t>(input_.number(4))); return true;
      case kMemoize: remember(static_cast<std::uint32_t>(memo_.size())); return true;
      case kBinGet: recall(input_.byte()); return true;
      case kLongBinGet: recall(static_cast<std::uint32_t>(input_.number(4))); return true;
      default: return false;
    }
  }

  void remember(std::uint32_t key) {
    memo_[key] = top();
    if (memo_.size() > kMostValues) corrupt(fmt::format("remembers over {} values", kMostValues));
  }

  void recall(std::uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) corrupt(fmt::format("uses value {} of its memory, which it has not set", key));
    stack_.push_back(found->second);
    // Values that cost one byte each, such as these, must not cost more memory than new ones.
    if (stack_.size() > kMostValues) corrupt(fmt::format("has over {} values", kMostValues));
  }

  bool object(std::uint8_t opcode) {
    switch (opcode) {
      case kProto:
        if (const std::uint8_t version = input_.byte(); version < 2 || version > 5) {
          unsupported(fmt::format("pickle protocol {}", version));
        }
        return true;
      case kFrame: input_.number(8); return true;
      case kGlobal: {
        const std::string module = input_.line(kMostNameBytes);
        push_name(module, input_.line(kMostNameBytes));
        return true;
      }
      case kStackGlobal: {
        const std::vector<PickleId> names = pop_some(2);
        push_name(text_of(names[0], "a module"), text_of(names[1], "a name"));
        return true;
      }
      case kReduce:
      case kNewObj: call(); return true;
      case kBinPersId: {
        const PickleId fields = pop();
        if (graph_.at(fields).kind != PickleKind::kTuple) corrupt("has a storage without a tuple of fields");
        push_list(PickleKind::kStorage, graph_.items(fields));
        return true;
      }
      case kBuild: build(pop()); return true;
      default: return false;
    }
  }

  void push_name(const std::string& module, const std::string& name) {
    const PickleName* known = find_name_(module, name);
    if (known == nullptr) unsupported(fmt::format("the Python name {}.{}", printable(module), printable(name)));
    PickleValue value{PickleKind::kName, {}};
    value.name = known;
    push(value);
  }

  // Attributes of a mapping, such as the versions that state_dict() notes, are dropped.
  void build(PickleId attributes) {
    const PickleId target = top();
    if (graph_.at(target).kind == PickleKind::kDict) return;
    const bool record = graph_.at(target).kind == PickleKind::kCall &&
                        graph_.at(graph_.items(target)[0]).name->role == PickleRole::kRecord;
    if (!record) unsupported("attributes of an object that is no dict");
    count_items(1);
    graph_.items(target).push_back(attributes);
  }

  void call() {
    const PickleId arguments = pop();
    const PickleId function = pop();
    if (graph_.at(function).kind != PickleKind::kName) corrupt("calls something that is no function");
    if (graph_.at(arguments).kind != PickleKind::kTuple) corrupt("has a call without a tuple of arguments");
    const std::vector<PickleId> items = graph_.items(arguments);
    if (graph_.at(function).name->role == PickleRole::kMapping) return push_mapping(items);
    std::vector<PickleId> all{function};
    all.insert(all.end(), items.begin(), items.end());
    push_list(PickleKind::kCall, std::move(all));
  }

  // OrderedDict(), OrderedDict([[key, value], ...]) or Counter({...}): items follow as for a dict.
  void push_mapping(const std::vector<PickleId>& arguments) {
    std::vector<PickleId> items;
    if (arguments.size() > 1) corrupt("makes a mapping of several arguments");
    if (!arguments.empty()) {
      const PickleKind kind = graph_.at(arguments[0]).kind;
      if (kind != PickleKind::kDict && kind != PickleKind::kList) corrupt("makes a mapping of something else");
      if (kind == PickleKind::kDict) items = graph_.items(arguments[0]);
      if (kind == PickleKind::kList) items = items_of_pairs(graph_.items(arguments[0]));
    }
    push_list(PickleKind::kDict, std::move(items));
  }

  std::vector<PickleId> items_of_pairs(const std::vector<PickleId>& pairs) const {
    std::vector<PickleId> items;
    for (const PickleId pair : pairs) {
      const PickleKind kind = graph_.at(pair).kind;
      if ((kind != PickleKind::kList && kind != PickleKind::kTuple) || graph_.items(pair).size() != 2) {
        corrupt("makes a mapping of something that is no pair");
      }
      items.insert(items.end(), graph_.items(pair).begin(), graph_.items(pair).end());
    }
    return items;
  }

  PickleInput& input_;
  FindPickleName find_name_;
  PickleGraph graph_;
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleId> memo_;
  std::size_t items_ = 0;  // of all lists together
  std::uint64_t at_ = 0;   // of the present opcode, in the file
};

}  // namespace

PickleGraph read_pickle(PickleInput& input, FindPickleName find_name) {
  return PickleReader(input, find_name).read();
}

}  // namespace lockstep::checkpoint
