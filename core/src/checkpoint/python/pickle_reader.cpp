#include "pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/printable.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

using namespace pickle_opcode;

constexpr std::size_t kMostValues = std::size_t{1} << 24;
constexpr std::size_t kMostNameBytes = 200;
constexpr PickleId kUnset = std::numeric_limits<PickleId>::max();

// What a value, an item of a container and so on take of memory, here and as values of LibTorch, at most.
constexpr std::uint64_t kValueBytes = 24;
constexpr std::uint64_t kTextBytes = 112;
constexpr std::uint64_t kListBytes = 160;
constexpr std::uint64_t kDictBytes = 320;
constexpr std::uint64_t kCallBytes = 448;  // a tensor
constexpr std::uint64_t kItemBytes = 28;
constexpr std::uint64_t kDictItemBytes = 72;  // a key, or its value

class PickleReader {
 public:
  PickleReader(PickleInput& input, ReadAllowance& allowance)
      : input_(input), allowance_(allowance), begin_(input.position()) {}

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
    allowance_.pickled -= memory_ - std::min(memory_, memory_of_bytes());
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

  std::uint64_t memory_of_bytes() const { return kPicklePerByte * (input_.position() - begin_); }
  void charge(std::uint64_t bytes) {
    memory_ += bytes;
    if (memory_ > allowance_.pickled + memory_of_bytes()) {
      corrupt(fmt::format("asks for over {} bytes of memory, {} for each of its bytes", memory_, kPicklePerByte));
    }
  }

  PickleId add(PickleValue value) {
    charge(kValueBytes);
    if (graph_.values.size() == kMostValues) corrupt(fmt::format("has over {} values", kMostValues));
    graph_.values.push_back(value);
    return static_cast<PickleId>(graph_.values.size() - 1);
  }
  void push(PickleValue value) { stack_.push_back(add(value)); }
  // Values that nothing can change are in memory once.
  void push_once(PickleId& id, PickleKind kind, std::int64_t integer = 0) {
    if (id == kUnset) {
      PickleValue value{kind, {}, {}};
      value.integer = integer;
      id = add(value);
    }
    push_again(id);
  }
  void push_again(PickleId id) {
    stack_.push_back(id);
    // Values that cost one byte each must not cost more memory than new ones.
    if (stack_.size() > kMostValues) corrupt(fmt::format("has over {} values", kMostValues));
  }
  void push_integer(PickleKind kind, std::int64_t integer) {
    PickleValue value{kind, {}, {}};
    value.integer = integer;
    push(value);
  }
  void push_text(PickleKind kind, std::string text) {
    charge(kTextBytes + 2 * text.size());
    PickleValue value{kind, {}, {}};
    value.place = graph_.texts.size();
    graph_.texts.push_back(std::move(text));
    push(value);
  }
  void push_list(PickleKind kind, std::vector<PickleId> items, PythonType python = PythonType::kSame) {
    charge(kind == PickleKind::kDict ? kDictBytes : kind == PickleKind::kCall ? kCallBytes : kListBytes);
    count_items(kind, items.size());
    PickleValue value{kind, {}, {}};
    value.place = graph_.lists.size();
    value.python = python;
    graph_.lists.push_back(std::move(items));
    push(value);
  }
  void push_tuple(std::vector<PickleId> items) {
    if (!items.empty()) return push_list(PickleKind::kTuple, std::move(items));
    if (empty_tuple_ != kUnset) return push_again(empty_tuple_);
    push_list(PickleKind::kTuple, {});
    empty_tuple_ = stack_.back();
  }

  // Arguments of calls are copied, so that a short pickle could ask for much memory.
  void count_items(PickleKind kind, std::size_t more) {
    charge(more * (kind == PickleKind::kDict ? kDictItemBytes : kItemBytes));
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

  const std::string& text_of(PickleId id, const char* what) const {
    if (graph_.at(id).kind != PickleKind::kText) corrupt(fmt::format("has {} that is no text", what));
    return graph_.text(id);
  }

  bool constant(std::uint8_t opcode) {
    switch (opcode) {
      case kNone: push_once(none_, PickleKind::kNone); return true;
      case kNewTrue: push_once(true_, PickleKind::kBool, 1); return true;
      case kNewFalse: push_once(false_, PickleKind::kBool, 0); return true;
      case kBinInt: push_integer(PickleKind::kInt, static_cast<std::int32_t>(input_.number(4))); return true;
      case kBinInt1: push_integer(PickleKind::kInt, input_.byte()); return true;
      case kBinInt2: push_integer(PickleKind::kInt, static_cast<std::int64_t>(input_.number(2))); return true;
      case kLong1: push_long(input_.bytes(input_.byte())); return true;
      case kLong4: push_long(input_.bytes(input_.number(4))); return true;
      case kBinFloat: {
        PickleValue value{PickleKind::kFloat, {}, {}};
        value.number = std::bit_cast<double>(__builtin_bswap64(input_.number(8)));
        push(value);
        return true;
      }
      case kBinUnicode:
      case kBinString: push_text(PickleKind::kText, input_.bytes(input_.number(4))); return true;
      case kShortBinUnicode:
      case kShortBinString: push_text(PickleKind::kText, input_.bytes(input_.byte())); return true;
      case kBinUnicode8: push_text(PickleKind::kText, input_.bytes(input_.number(8))); return true;
      case kBinBytes8: push_text(PickleKind::kBytes, input_.bytes(input_.number(8))); return true;
      case kByteArray8:
        input_.bytes(input_.number(8));
        push_foreign("the Python object builtins.bytearray");
        return true;
      case kBinBytes: push_text(PickleKind::kBytes, input_.bytes(input_.number(4))); return true;
      case kShortBinBytes: push_text(PickleKind::kBytes, input_.bytes(input_.byte())); return true;
      default: return false;
    }
  }

  // Two's complement.
  void push_long(const std::string& bytes) {
    const std::size_t count = bytes.size();
    const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])); };
    if (count > 9 || (count == 9 && bytes[8] != 0)) return push_foreign("an integer of over 64 bits");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 8); ++i) value |= byte(i) << (8 * i);
    if (count > 0 && count < 8 && (byte(count - 1) & 0x80) != 0) value |= ~std::uint64_t{0} << (8 * count);
    const bool beyond = count == 9 && (value >> 63) != 0;
    push_integer(beyond ? PickleKind::kUnsigned : PickleKind::kInt, static_cast<std::int64_t>(value));
  }

  void push_foreign(std::string what) { push_text(PickleKind::kForeign, std::move(what)); }

  bool container(std::uint8_t opcode) {
    switch (opcode) {
      case kMark:
        marks_.push_back(stack_.size());
        if (marks_.size() > kMostValues) corrupt(fmt::format("has over {} marks", kMostValues));
        return true;
      case kPop: pop(); return true;
      case kPopMark: pop_to_mark(); return true;
      case kEmptyList: push_list(PickleKind::kList, {}); return true;
      case kEmptySet: push_list(PickleKind::kList, {}, PythonType::kSet); return true;
      case kEmptyDict: push_list(PickleKind::kDict, {}); return true;
      case kEmptyTuple: push_tuple({}); return true;
      case kTuple: push_tuple(pop_to_mark()); return true;
      case kTuple1: push_tuple(pop_some(1)); return true;
      case kTuple2: push_tuple(pop_some(2)); return true;
      case kTuple3: push_tuple(pop_some(3)); return true;
      case kAppend: extend(PickleKind::kList, pop_some(1)); return true;
      case kAppends:
      case kAddItems: extend(PickleKind::kList, pop_to_mark()); return true;
      case kSetItem: extend(PickleKind::kDict, pop_some(2)); return true;
      case kSetItems: extend(PickleKind::kDict, pop_to_mark()); return true;
      case kFrozenSet:
        pop_to_mark();
        push_foreign("the Python object builtins.frozenset");
        return true;
      default: return false;
    }
  }

  void extend(PickleKind kind, const std::vector<PickleId>& items) {
    const PickleId target = top();
    if (graph_.at(target).kind == PickleKind::kForeign) return;
    if (graph_.at(target).kind != kind) {
      corrupt(fmt::format("adds to something that is no {}", kind == PickleKind::kList ? "list" : "dict"));
    }
    if (kind == PickleKind::kDict && items.size() % 2 != 0) corrupt("adds a key without a value to a dict");
    count_items(kind, items.size());
    std::vector<PickleId>& list = graph_.items(target);
    list.insert(list.end(), items.begin(), items.end());
  }

  bool memory(std::uint8_t opcode) {
    switch (opcode) {
      case kBinPut: remember(input_.byte()); return true;
      case kLongBinPut: remember(static_cast<std::uint32_t>(input_.number(4))); return true;
      case kMemoize: remember(remembered_); return true;
      case kBinGet: recall(input_.byte()); return true;
      case kLongBinGet: recall(static_cast<std::uint32_t>(input_.number(4))); return true;
      default: return false;
    }
  }

  // Python numbers what it remembers from 0 on, so a table is small, and no numbers can be chosen that make it slow.
  void remember(std::uint32_t key) {
    const PickleId id = top();
    if (key >= kMostValues) corrupt(fmt::format("remembers over {} values", kMostValues));
    if (key >= memo_.size())
      memo_.resize(std::max<std::size_t>(key + 1, std::min(2 * memo_.size(), kMostValues)), kUnset);
    if (memo_[key] == kUnset) ++remembered_;
    memo_[key] = id;
  }

  void recall(std::uint32_t key) {
    if (key >= memo_.size() || memo_[key] == kUnset) {
      corrupt(fmt::format("uses value {} of its memory, which it has not set", key));
    }
    push_again(memo_[key]);
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
      case kNewObjEx: pop(), call(); return true;  // without the arguments that have names
      case kBinPersId: push_persistent(pop()); return true;
      case kBuild: build(); return true;
      default: return false;
    }
  }

  void push_name(std::string_view module, std::string_view name) {
    const PickleName* known = find_pickle_name(module, name);
    if (known == nullptr) {
      const auto shown = [](std::string_view part) { return printable(part.substr(0, kMostNameBytes)); };
      return push_foreign(fmt::format("the Python object {}.{}", shown(module), shown(name)));
    }
    PickleValue value{PickleKind::kName, {}, {}};
    value.name = known;
    push(value);
  }

  // A storage, or in files of the older format the class of a module: ("module", class, file, source).
  void push_persistent(PickleId fields) {
    if (graph_.at(fields).kind != PickleKind::kTuple) corrupt("has a storage without a tuple of fields");
    const std::vector<PickleId>& items = graph_.items(fields);
    if (items.size() == 4 && graph_.at(items[1]).kind == PickleKind::kForeign) return push(graph_.at(items[1]));
    push_list(PickleKind::kStorage, items);
  }

  // Attributes of a mapping, such as the versions that state_dict() notes, are dropped.
  void build() {
    pop();
    const PickleKind target = graph_.at(top()).kind;
    if (target != PickleKind::kDict && target != PickleKind::kForeign)
      unsupported("attributes of an object that is no dict");
  }

  void call() {
    const PickleId arguments = pop();
    const PickleId function = pop();
    if (graph_.at(function).kind == PickleKind::kForeign) return call_foreign(function, arguments);
    if (graph_.at(function).kind != PickleKind::kName) corrupt("calls something that is no function");
    if (graph_.at(arguments).kind != PickleKind::kTuple) corrupt("has a call without a tuple of arguments");
    const std::vector<PickleId> items = graph_.items(arguments);
    const PickleName& name = *graph_.at(function).name;
    if (name.role == PickleRole::kMapping) {
      return push_mapping(items, name.name == "Counter" ? PythonType::kCounter : PythonType::kOrderedDict);
    }
    std::vector<PickleId> all{function};
    all.insert(all.end(), items.begin(), items.end());
    push_list(PickleKind::kCall, std::move(all));
  }

  // Makes an object that goes by the name of what makes it. getattr(class, name) is how Python names a method.
  void call_foreign(PickleId function, PickleId arguments) {
    const std::string& text = graph_.text(function);
    if (text.ends_with(".getattr") && graph_.at(arguments).kind == PickleKind::kTuple) {
      const std::vector<PickleId>& items = graph_.items(arguments);
      if (items.size() == 2 && graph_.at(items[0]).kind == PickleKind::kForeign &&
          graph_.at(items[1]).kind == PickleKind::kText) {
        const std::string name = printable(std::string_view(graph_.text(items[1])).substr(0, kMostNameBytes));
        return push_foreign(fmt::format("{}.{}", graph_.text(items[0]), name));
      }
    }
    push(graph_.at(function));
  }

  // OrderedDict(), OrderedDict([[key, value], ...]) or Counter({...}): items follow as for a dict.
  void push_mapping(const std::vector<PickleId>& arguments, PythonType python) {
    std::vector<PickleId> items;
    if (arguments.size() > 1) corrupt("makes a mapping of several arguments");
    if (!arguments.empty()) {
      const PickleKind kind = graph_.at(arguments[0]).kind;
      if (kind != PickleKind::kDict && kind != PickleKind::kList) corrupt("makes a mapping of something else");
      if (kind == PickleKind::kDict) items = graph_.items(arguments[0]);
      if (kind == PickleKind::kList) items = items_of_pairs(graph_.items(arguments[0]));
    }
    push_list(PickleKind::kDict, std::move(items), python);
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
  ReadAllowance& allowance_;
  std::uint64_t begin_;  // in the file
  PickleGraph graph_;
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleId> memo_;  // kUnset: nothing
  std::uint32_t remembered_ = 0;
  PickleId none_ = kUnset;
  PickleId true_ = kUnset;
  PickleId false_ = kUnset;
  PickleId empty_tuple_ = kUnset;
  std::uint64_t memory_ = 0;  // that the values take
  std::uint64_t at_ = 0;      // of the present opcode, in the file
};

}  // namespace

PickleGraph read_pickle(PickleInput& input, ReadAllowance& allowance) {
  return PickleReader(input, allowance).read();
}

}  // namespace lockstep::checkpoint
