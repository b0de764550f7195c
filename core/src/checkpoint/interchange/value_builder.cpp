#include "value_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/python/pickle_names.h"
#include "checkpoint/state/file_values.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kDeepest = 100;
constexpr std::uint64_t kMostExpanded = std::uint64_t{1} << 24;  // values, when shared ones are counted at each use
constexpr std::size_t kShownKey = 60;
constexpr std::size_t kMostBits = 2;  // conj, neg

// LibTorch warns that few operations take complex32. Nothing is calculated here.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning& /*unused*/) override {}
};

class ValueBuilder {
 public:
  ValueBuilder(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of,
               TypeChanges* changes)
      : graph_(graph),
        storage_of_(storage_of),
        changes_(changes),
        made_(graph.lists.size(), Built{{}, 0}),
        texts_(graph.texts.size()) {}

  c10::IValue build() {
    try {
      return build(graph_.root).value;
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.code(), place_.empty() ? error.what() : fmt::format("{}: {}", place_, error.what()));
    }
  }

 private:
  struct Built {
    c10::IValue value;
    std::uint64_t expanded = 1;
  };
  static constexpr std::uint64_t kBeingMade = std::numeric_limits<std::uint64_t>::max();

  // A value that is being built. If it occurs inside of itself, the pickle has a cycle.
  Built build(PickleId id) {
    const PickleKind kind = graph_.at(id).kind;
    if (kind != PickleKind::kList && kind != PickleKind::kTuple && kind != PickleKind::kDict &&
        kind != PickleKind::kCall) {
      return {scalar(id)};
    }
    Built& made = made_[graph_.at(id).place];
    if (made.expanded == kBeingMade) damaged("a value contains itself");
    if (made.expanded != 0) return made;
    made.expanded = kBeingMade;
    if (++depth_ > kDeepest) damaged(fmt::format("its values are nested over {} deep", kDeepest));
    made = container_or_foreign(id);
    --depth_;
    if (made.expanded > kMostExpanded) damaged(fmt::format("it has over {} values", kMostExpanded));
    return made;
  }

  Built container_or_foreign(PickleId id) {
    const int depth = depth_;
    const std::size_t place = place_.size();
    try {
      return container(id);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      depth_ = depth;
      place_.resize(place);
      return {foreign_value(error.what())};
    }
  }

  // A text that is used many times is in memory once: otherwise a small file could ask for any amount.
  c10::IValue text(PickleId id) {
    const PickleValue& value = graph_.at(id);
    c10::IValue& made = texts_[value.place];
    if (made.isNone()) made = value.kind == PickleKind::kForeign ? foreign_value(graph_.text(id)) : graph_.text(id);
    return made;
  }

  // A value that is no value here.
  c10::IValue other(PickleId id, const std::string& what) {
    const auto [found, is_new] = others_.try_emplace(id);
    if (is_new) found->second = foreign_value(what);
    return found->second;
  }

  c10::IValue scalar(PickleId id) {
    const PickleValue& value = graph_.at(id);
    switch (value.kind) {
      case PickleKind::kBool: return value.integer != 0;
      case PickleKind::kInt: return value.integer;
      case PickleKind::kUnsigned: return static_cast<std::uint64_t>(value.integer);
      case PickleKind::kFloat: return value.number;
      case PickleKind::kBytes: note("bytes to str"); [[fallthrough]];
      case PickleKind::kText:
      case PickleKind::kForeign: return text(id);
      case PickleKind::kStorage: return other(id, "a storage without a tensor");
      case PickleKind::kName:
        if (value.name->role == PickleRole::kDtype) {
          note("torch.dtype to str");
          return std::string(value.name->dtype);
        }
        return other(id, fmt::format("the Python object {}.{}", value.name->module, value.name->name));
      default: return {};
    }
  }

  void note(const char* change) {
    if (changes_ != nullptr) changes_->add(change, place_);
  }

  Built container(PickleId id) {
    switch (graph_.at(id).python) {
      case PythonType::kSame: break;
      case PythonType::kOrderedDict: note("OrderedDict to dict"); break;
      case PythonType::kCounter: note("Counter to dict"); break;
      case PythonType::kSet: note("set to list"); break;
    }
    switch (graph_.at(id).kind) {
      case PickleKind::kList: return list(graph_.items(id));
      case PickleKind::kTuple: return tuple(graph_.items(id));
      case PickleKind::kDict: return dict(graph_.items(id));
      default: return call(graph_.items(id));
    }
  }

  Built list(const std::vector<PickleId>& items) {
    c10::impl::GenericList values(c10::AnyType::get());
    std::uint64_t expanded = 1;
    for (std::size_t i = 0; i < items.size(); ++i) values.push_back(item(items[i], fmt::format("[{}]", i), expanded));
    return {values, expanded};
  }

  Built tuple(const std::vector<PickleId>& items) {
    std::vector<c10::IValue> values;
    std::uint64_t expanded = 1;
    values.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) values.push_back(item(items[i], fmt::format("[{}]", i), expanded));
    return {c10::ivalue::Tuple::create(std::move(values)), expanded};
  }

  Built dict(const std::vector<PickleId>& items) {
    std::vector<c10::IValue> keys;
    for (std::size_t i = 0; i < items.size(); i += 2) keys.push_back(key(items[i]));
    growth_.add(keys);
    c10::impl::GenericDict values(c10::AnyType::get(), c10::AnyType::get());
    std::uint64_t expanded = 1;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const c10::IValue& name = keys[i / 2];
      const std::string place =
          name.isString() ? key_place(name.toStringRef()) : fmt::format("[{}]", name.isInt() ? name.toInt() : 0);
      values.insert_or_assign(name, item(items[i + 1], place, expanded));
    }
    return {values, expanded};
  }

  c10::IValue key(PickleId id) {
    const PickleKind kind = graph_.at(id).kind;
    // Not bytes and dtypes, which would become the same keys as texts.
    c10::IValue made = kind < PickleKind::kBytes ? scalar(id) : c10::IValue();
    if (made.isString() || made.isInt() || made.isDouble() || made.isBool()) return made;
    refuse_object("a dict with a key that is neither text nor a number");
  }

  // An entry of a container. The place of an error is left in place_.
  c10::IValue item(PickleId id, const std::string& place, std::uint64_t& expanded) {
    const std::size_t before = place_.size();
    place_ += place;
    Built built = build(id);
    place_.resize(before);
    expanded = std::min(expanded + built.expanded, kMostExpanded + 1);
    return std::move(built.value);
  }

  Built call(const std::vector<PickleId>& items) {
    const PickleName& function = name_at(graph_, items[0]);
    const std::vector<PickleId> arguments(items.begin() + 1, items.end());
    const auto expect = [&](std::size_t least, std::size_t most) {
      if (arguments.size() >= least && arguments.size() <= most) return;
      damaged(fmt::format("{}.{} is called with {} arguments", function.module, function.name, arguments.size()));
    };
    switch (function.role) {
      case PickleRole::kSize:
        expect(1, 1);
        note("torch.Size to tuple");
        return size(arguments[0]);
      case PickleRole::kDevice: expect(1, 2); return {device(arguments)};
      case PickleRole::kComplex: expect(2, 2); return {c10::complex<double>(real(arguments[0]), real(arguments[1]))};
      case PickleRole::kSet:
        expect(0, 1);
        note("set to list");
        return arguments.empty() ? list({}) : build(arguments[0]);
      case PickleRole::kEncoded:
        expect(2, 2);
        note("bytes to str");
        return {encoded(arguments)};
      case PickleRole::kNoBytes:
        expect(0, 0);
        note("bytes to str");
        return {std::string()};
      case PickleRole::kTensor: expect(4, 7); return {tensor(arguments, nullptr)};
      case PickleRole::kTensorWithDtype: expect(7, 8); return {tensor(arguments, &name_at(graph_, arguments[6]))};
      case PickleRole::kParameter:
        expect(3, 3);
        note("Parameter to Tensor");
        return {parameter(arguments)};
      case PickleRole::kParameterWithState:
        expect(4, 4);
        note("Parameter to Tensor");
        return {parameter(arguments)};
      case PickleRole::kSubclass: expect(4, 4); return subclass(arguments);
      default: refuse_object(fmt::format("the Python object {}.{}", function.module, function.name));
    }
  }

  Built size(PickleId id) {
    if (graph_.at(id).kind != PickleKind::kTuple) damaged("torch.Size has no tuple");
    return build(id);
  }

  double real(PickleId id) const {
    const PickleValue& value = graph_.at(id);
    if (value.kind == PickleKind::kFloat) return value.number;
    if (value.kind == PickleKind::kInt) return static_cast<double>(value.integer);
    damaged("a part of a complex number is no number");
  }

  c10::IValue device(const std::vector<PickleId>& arguments) const {
    std::string text = text_at(graph_, arguments[0]);
    if (arguments.size() == 2 && graph_.at(arguments[1]).kind == PickleKind::kInt) {
      text += fmt::format(":{}", count_at(graph_, arguments[1]));
    }
    try {
      return c10::Device(text);
    } catch (const c10::Error&) {
      damaged(fmt::format("\"{:.40}\" is no device", printable(text)));
    }
  }

  // Protocol 2 writes bytes as text whose characters are the bytes (latin1). Made once for each text.
  c10::IValue encoded(const std::vector<PickleId>& arguments) {
    if (text_at(graph_, arguments[1]) != "latin1") refuse_object("bytes that are not encoded as latin1");
    const std::string& text = text_at(graph_, arguments[0]);
    const auto [found, is_new] = encoded_.try_emplace(arguments[0]);
    if (is_new) found->second = from_latin1(text);
    return found->second;
  }

  static std::string from_latin1(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto first = static_cast<unsigned char>(text[i]);
      if (first < 0x80) {
        bytes += text[i];
        continue;
      }
      const bool two = (first == 0xC2 || first == 0xC3) && i + 1 < text.size() && (text[i + 1] & 0xC0) == 0x80;
      if (!two) damaged("bytes are not encoded as latin1");
      bytes += static_cast<char>((first & 3) << 6 | (text[++i] & 0x3F));
    }
    return bytes;
  }

  // (tensor, requires_grad, hooks)
  c10::IValue parameter(const std::vector<PickleId>& arguments) {
    const c10::IValue value = build(arguments[0]).value;
    if (const std::string* what = foreign_text(value)) refuse_object(*what);
    if (!value.isTensor()) damaged("a Parameter holds no tensor");
    return with_gradient(value.toTensor(), arguments[1]);
  }

  // (function, class, its arguments, attributes)
  Built subclass(const std::vector<PickleId>& arguments) {
    if (name_at(graph_, arguments[1]).role != PickleRole::kClass) refuse_object("a subclass of torch.Tensor");
    if (graph_.at(arguments[2]).kind != PickleKind::kTuple) damaged("a tensor has no tuple of arguments");
    if (++depth_ > kDeepest) damaged(fmt::format("its values are nested over {} deep", kDeepest));
    std::vector<PickleId> items{arguments[0]};
    items.insert(items.end(), graph_.items(arguments[2]).begin(), graph_.items(arguments[2]).end());
    Built built = call(items);
    --depth_;
    return built;
  }

  torch::Tensor with_gradient(const torch::Tensor& tensor, PickleId flag) const {
    const PickleValue& value = graph_.at(flag);
    if (value.kind != PickleKind::kBool) damaged("requires_grad is neither True nor False");
    if (value.integer == 0) return tensor;
    if (!tensor.is_floating_point() && !tensor.is_complex()) damaged("a tensor of integers has a gradient");
    return tensor.detach().requires_grad_();
  }

  // (storage, offset, size, stride, requires_grad, hooks, [dtype], [bits])
  torch::Tensor tensor(const std::vector<PickleId>& arguments, const PickleName* dtype_name) {
    if (graph_.at(arguments[0]).kind != PickleKind::kStorage) damaged("a tensor has no storage");
    const StorageFields fields = storage_fields(graph_, arguments[0]);
    if (dtype_name != nullptr && dtype_name->role != PickleRole::kDtype) damaged("a tensor has no dtype");
    std::string name = dtype_name != nullptr ? std::string(dtype_name->dtype) : fields.dtype;
    if (name.empty()) name = "uint8";
    const torch::ScalarType dtype = find_dtype(name)->dtype;
    const std::int64_t offset = count_at(graph_, arguments[1]);
    const std::vector<std::int64_t> sizes = counts_at(graph_, arguments[2]);
    const std::vector<std::int64_t> strides = counts_at(graph_, arguments[3]);
    require_inside(fields, c10::elementSize(dtype), offset, sizes, strides);
    const c10::Storage storage = storage_of_(fields);
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    torch::Tensor made = torch::empty({0}, torch::dtype(dtype).device(storage.device()));
    made.set_(storage, offset, sizes, strides);
    const std::size_t bits = dtype_name != nullptr ? 7 : 6;
    if (arguments.size() > bits) set_bits(made, arguments[bits]);
    return arguments.size() > 4 ? with_gradient(made, arguments[4]) : made;
  }

  void set_bits(torch::Tensor& tensor, PickleId id) const {
    if (graph_.at(id).kind == PickleKind::kNone) return;
    if (graph_.at(id).kind != PickleKind::kDict) damaged("a tensor has no dict of lazy bits");
    const std::vector<PickleId>& items = graph_.items(id);
    if (items.size() > 2 * kMostBits) damaged("a tensor has too many lazy bits");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const std::string& bit = text_at(graph_, items[i]);
      const bool set = graph_.at(items[i + 1]).kind == PickleKind::kBool && graph_.at(items[i + 1]).integer != 0;
      if (bit == "conj" && tensor.is_complex()) {
        tensor._set_conj(set);
      } else if (bit == "neg") {
        tensor._set_neg(set);
      } else {
        refuse_object(fmt::format("a tensor with the lazy bit \"{:.40}\"", printable(bit)));
      }
    }
  }

  const PickleGraph& graph_;
  const std::function<c10::Storage(const StorageFields&)>& storage_of_;
  TypeChanges* changes_;
  std::vector<Built> made_;         // by the place in graph_.lists; expanded is 0 before it is made
  std::vector<c10::IValue> texts_;  // by the place in graph_.texts
  std::unordered_map<PickleId, c10::IValue> others_;
  std::unordered_map<PickleId, c10::IValue> encoded_;
  DictGrowth growth_;
  std::string place_;  // of the present value
  int depth_ = 0;
};

}  // namespace

std::string key_place(std::string_view key) {
  return fmt::format("[\"{}\"]", printable(key.substr(0, kShownKey)));
}

TypeChanges::TypeChanges(std::string_view entry) : under_(entry.empty() ? "" : key_place(entry)) {}

void TypeChanges::add(const char* what, const std::string& place) {
  constexpr std::size_t kFirst = 8;
  if (!place.starts_with(under_)) return;
  Places& places = changes_[what];
  if (++places.count <= kFirst) places.first.push_back(place.empty() ? "all" : place);
}

std::vector<std::string> TypeChanges::lines() const {
  std::vector<std::string> lines;
  for (const auto& [what, places] : changes_) {
    lines.push_back(fmt::format("changed: {} {}: {}{}", places.count, what, fmt::join(places.first, ", "),
                                places.count > places.first.size() ? ", ..." : ""));
  }
  return lines;
}

c10::IValue build_value(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of,
                        TypeChanges* changes) {
  return ValueBuilder(graph, storage_of, changes).build();
}

}  // namespace lockstep::checkpoint
