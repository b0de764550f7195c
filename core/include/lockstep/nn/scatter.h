// Splits nested values over devices and puts them together again: DataParallel does this with the arguments and the
// results of a module. The functions may be used on their own too.
//
//   std::vector<Batch> parts = lockstep::parallel::scatter(batch, devices);   // 30 rows on 3 devices: 10 + 10 + 10
//   Batch whole = lockstep::parallel::gather(parts, devices.front());
//
// A value may be a tensor; std::vector, std::array, std::pair, std::tuple, std::map, std::unordered_map, std::optional
// or std::variant of values; a number, a string or another plain value; a struct of your own that lists values of these
// kinds by fields() (fields.h). Members that are not listed are taken from the first part by gather(). A type that is
// none of these does not compile, because it could hide a tensor that would then not be split: wrap it in replicated().
//
// Tensors are split along one dimension as torch.chunk does it: every part but the last has ceil(rows / devices) rows,
// so there may be fewer parts than devices. A tensor without dimensions goes to every device whole, and so does every
// tensor within replicated(). Plain values are copied. All tensors that are split must have the same number of rows
// (PyTorch silently drops rows where the numbers differ).
//
// Errors: c10::ValueError, which names the tensor ("argument 1, key 'mask'"). Thread-safe, like the values themselves.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/fields.h"

namespace lockstep::parallel {

// A value that is not split: forward() gets `value` on every replica. For a mask, class weights, a pointer. Tensors in
// the value are copied to each device and get their gradient; the object of a pointer is shared by the threads.
template <typename T>
struct Replicated {
  T value;
};
template <typename T>
Replicated<std::decay_t<T>> replicated(T&& value) {
  return {std::forward<T>(value)};
}

namespace detail {

// The place of a tensor within the values.
struct Path {
  const Path* outer = nullptr;
  std::string_view name = {};  // with `number`: "argument 1"; alone: a member's name
  std::int64_t number = -1;
  bool whole = false;  // within replicated()
  std::string text() const;
};

using Leaf = std::function<void(torch::Tensor&, const Path&)>;

// `lenient`: skips values of unknown kinds.
template <bool lenient = false, typename T>
void visit(T& value, const Leaf& leaf, const Path& path);

template <typename T>
concept PlainClass = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view> ||
    std::is_same_v<T, torch::Device> || std::is_same_v<T, torch::Scalar> || std::is_same_v<T, torch::TensorOptions> ||
    std::is_same_v<T, torch::IntArrayRef> || std::is_same_v<T, std::complex<float>> ||
    std::is_same_v<T, std::complex<double>>;

// How a type is split. kUnknown does not compile.
enum class Kind { kUnknown, kPlain, kTensor, kSequence, kTuple, kMap, kOptional, kVariant, kStruct, kReplicated };

template <typename T>
struct KindOf {
  static constexpr Kind kKind = HasFields<T> ? Kind::kStruct
                                : std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> || PlainClass<T>
                                    ? Kind::kPlain
                                    : Kind::kUnknown;
  static constexpr bool kKnown = kKind != Kind::kUnknown;
  static constexpr bool kTensors = kKind == Kind::kStruct;  // may hold tensors
  static constexpr bool kCopies = std::is_copy_constructible_v<T>;
};
template <Kind kind, typename... Inner>
struct Nest {
  static constexpr Kind kKind = kind;
  static constexpr bool kKnown = (KindOf<Inner>::kKnown && ...);
  static constexpr bool kTensors = (KindOf<Inner>::kTensors || ...);
  static constexpr bool kCopies =
      (KindOf<Inner>::kCopies && ...);  // a container itself does not say whether its elements can be copied
};
template <>
struct KindOf<const char*> : Nest<Kind::kPlain> {};
template <>
struct KindOf<torch::Tensor> {
  static constexpr Kind kKind = Kind::kTensor;
  static constexpr bool kKnown = true;
  static constexpr bool kTensors = true;
  static constexpr bool kCopies = true;
};
template <typename R, typename P>
struct KindOf<std::chrono::duration<R, P>> : KindOf<int> {};
template <typename T, typename A>
struct KindOf<std::vector<T, A>> : Nest<Kind::kSequence, T> {};
template <typename T, std::size_t n>
struct KindOf<std::array<T, n>> : Nest<Kind::kSequence, T> {};
template <typename A, typename B>
struct KindOf<std::pair<A, B>> : Nest<Kind::kTuple, A, B> {};
template <typename... T>
struct KindOf<std::tuple<T...>> : Nest<Kind::kTuple, T...> {};
template <typename K, typename T, typename... Rest>
struct KindOf<std::map<K, T, Rest...>> : Nest<Kind::kMap, T> {};
template <typename K, typename T, typename... Rest>
struct KindOf<std::unordered_map<K, T, Rest...>> : Nest<Kind::kMap, T> {};
template <typename T>
struct KindOf<std::optional<T>> : Nest<Kind::kOptional, T> {};
template <typename... T>
struct KindOf<std::variant<T...>> : Nest<Kind::kVariant, T...> {};
template <typename T>
struct KindOf<Replicated<T>> {
  static constexpr Kind kKind = Kind::kReplicated;
  static constexpr bool kKnown = true;
  static constexpr bool kTensors = KindOf<T>::kTensors;
  static constexpr bool kCopies = KindOf<T>::kCopies;
};

// Keys in their order: the iteration order of two equal unordered maps may differ.
template <typename Map>
std::vector<const typename Map::key_type*> sorted_keys(const Map& map) {
  std::vector<const typename Map::key_type*> keys;
  keys.reserve(map.size());
  for (const auto& entry : map) keys.push_back(&entry.first);
  std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
  return keys;
}

template <typename Key>
Path path_of_key(const Path& outer, const Key& key, std::int64_t position) {
  if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
    return {&outer, key, -1, outer.whole};
  } else if constexpr (std::is_integral_v<Key> || std::is_enum_v<Key>) {
    return {&outer, "key", static_cast<std::int64_t>(key), outer.whole};
  } else {
    return {&outer, "entry", position, outer.whole};
  }
}

// References to the values of a tuple, a pair or a struct.
template <typename T>
auto elements(T& value) {
  if constexpr (HasFields<T>) {
    return fields(value);
  } else {
    return std::apply([](auto&... element) { return std::tie(element...); }, value);
  }
}
// The place of one of them: "[1]" of a tuple, "field 1" of a struct.
template <typename T>
Path path_of_element(const Path& outer, std::size_t number) {
  return {&outer, HasFields<T> ? "field" : "", static_cast<std::int64_t>(number), outer.whole};
}

// Calls leaf for every tensor in `value`, in the same order for equal structures.
template <bool lenient, typename T>
void visit(T& value, const Leaf& leaf, const Path& path) {
  static_assert(lenient || KindOf<T>::kKnown,
                "Lockstep cannot tell whether this type holds tensors, which must be split over devices. Give the type "
                "fields(), or pass it as lockstep::parallel::replicated(value): see lockstep/nn/scatter.h.");
  constexpr Kind kKind = KindOf<T>::kKind;
  if constexpr (!KindOf<T>::kTensors) {
    return;
  } else if constexpr (kKind == Kind::kTensor) {
    leaf(value, path);
  } else if constexpr (kKind == Kind::kSequence) {
    std::int64_t number = 0;
    for (auto& item : value) visit<lenient>(item, leaf, {&path, {}, number++, path.whole});
  } else if constexpr (kKind == Kind::kTuple || kKind == Kind::kStruct) {
    std::size_t number = 0;
    std::apply([&](auto&... item) { (visit<lenient>(item, leaf, path_of_element<T>(path, number++)), ...); },
               elements(value));
  } else if constexpr (kKind == Kind::kMap) {
    std::int64_t number = 0;
    for (const auto* key : sorted_keys(value)) visit<lenient>(value.at(*key), leaf, path_of_key(path, *key, number++));
  } else if constexpr (kKind == Kind::kOptional) {
    if (value) visit<lenient>(*value, leaf, path);
  } else if constexpr (kKind == Kind::kVariant) {
    std::visit([&](auto& held) { visit<lenient>(held, leaf, path); }, value);
  } else {
    visit<lenient>(value.value, leaf, {path.outer, path.name, path.number, true});
  }
}

// The tensors of some values, in the order of visit().
struct Tensors {
  std::vector<torch::Tensor> tensors;
  std::vector<bool> whole;
  std::vector<std::string> names;

  Leaf adder() {
    return [this](torch::Tensor& tensor, const Path& path) {
      tensors.push_back(tensor);
      whole.push_back(path.whole);
      names.push_back(path.text());
    };
  }
};

template <typename T>
Tensors collect(T& value, const Path& path) {
  Tensors found;
  visit(value, found.adder(), path);
  return found;
}
// The tensors of arguments, which are named "argument 0", "argument 1".
template <typename... T>
Tensors collect_arguments(std::tuple<T...>& values) {
  Tensors found;
  const Leaf add = found.adder();
  std::int64_t number = 0;
  std::apply([&](auto&... value) { (visit(value, add, {nullptr, "argument", number++}), ...); }, values);
  return found;
}

template <typename T>
void replace(T& value, const std::vector<torch::Tensor>& tensors) {
  std::size_t next = 0;
  visit(value, [&](torch::Tensor& tensor, const Path&) { tensor = tensors.at(next++); }, {});
}

// Throws an error that names the place unless two results have the same structure and the same plain values.
void structures_differ(const Path& path, std::size_t replica, std::string_view what);
template <typename T>
void check_same(T& first, T& other, std::size_t replica, const Path& path) {
  constexpr Kind kKind = KindOf<T>::kKind;
  if constexpr (kKind == Kind::kTensor) {
    if (first.defined() != other.defined()) structures_differ(path, replica, "a tensor, the other an undefined one");
  } else if constexpr (kKind == Kind::kSequence) {
    if (first.size() != other.size()) structures_differ(path, replica, "another number of values");
    if constexpr (KindOf<T>::kTensors) {
      for (std::size_t i = 0; i < first.size(); ++i)
        check_same(first[i], other[i], replica, {&path, {}, static_cast<std::int64_t>(i)});
    } else if constexpr (requires { first.front() == other.front(); }) {
      if (!(first == other) && first == first) structures_differ(path, replica, "other values");  // NaN equals nothing
    }
  } else if constexpr (kKind == Kind::kTuple || kKind == Kind::kStruct) {
    const auto mine = elements(first), its = elements(other);
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      (check_same(std::get<i>(mine), std::get<i>(its), replica, path_of_element<T>(path, i)), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(elements(first))>>());
  } else if constexpr (kKind == Kind::kMap) {
    if (first.size() != other.size()) structures_differ(path, replica, "another number of entries");
    std::int64_t number = 0;
    for (const auto* key : sorted_keys(first)) {
      const Path inner = path_of_key(path, *key, number++);
      const auto found = other.find(*key);
      if (found == other.end()) structures_differ(inner, replica, "no such entry");
      check_same(first.at(*key), found->second, replica, inner);
    }
  } else if constexpr (kKind == Kind::kOptional) {
    if (first.has_value() != other.has_value()) structures_differ(path, replica, "a value, the other none");
    if (first) check_same(*first, *other, replica, path);
  } else if constexpr (kKind == Kind::kReplicated) {
    check_same(first.value, other.value, replica, path);
  } else if constexpr (kKind == Kind::kVariant) {
    if (first.index() != other.index()) structures_differ(path, replica, "another alternative of the variant");
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((first.index() == i ? check_same(*std::get_if<i>(&first), *std::get_if<i>(&other), replica, path) : void()),
       ...);
    }
    (std::make_index_sequence<std::variant_size_v<T>>());
  } else if constexpr (requires { first == other; }) {
    if (!(first == other) && first == first) structures_differ(path, replica, "another value");
  }
}

// Returns what forward() gets for an argument of type Arg& or Arg&&: a reference of the same kind to the copy; for
// replicated(), to the value inside.
template <typename Arg, typename Value>
decltype(auto) pass(Value& value) {
  if constexpr (KindOf<Value>::kKind == Kind::kReplicated) {
    return (value.value);
  } else if constexpr (std::is_array_v<std::remove_reference_t<Arg>>) {
    return (value);
  } else {
    return static_cast<Arg&&>(value);
  }
}

// The number of rows of each part when `rows` rows are cut for `parts` devices, as torch.chunk cuts them. Without rows,
// every device gets an empty part.
std::vector<std::int64_t> chunk_lengths(std::int64_t rows, std::size_t parts);
// The chunk_lengths() of all tensors that are split: empty if there are none. c10::ValueError, with the tensor's name,
// if their numbers of rows differ or one lacks the dimension.
std::vector<std::int64_t> plan_split(const Tensors& found, std::size_t parts, std::int64_t dim);
bool is_split(const Tensors& found, std::size_t index);
// Returns the part [start, start + length) of a tensor, as a view; the whole tensor if it is not split.
torch::Tensor part_of(const Tensors& found, std::size_t index, const std::vector<std::int64_t>& lengths,
                      std::size_t part, std::int64_t dim);
// Throws c10::ValueError unless the parts of a result can be put together. All parts are defined.
void check_parts(const std::vector<torch::Tensor>& parts, std::int64_t dim, const std::string& name);
// Puts tensors together to one tensor on `device`; tensors without dimensions become a vector. Undefined if all parts
// are undefined.
torch::Tensor join(const std::vector<torch::Tensor>& parts, torch::Device device, std::int64_t dim,
                   const std::string& name);

// For a value that cannot be copied.
void check_is_on(torch::Device device, const torch::Tensor& tensor, const Path& path);

// Returns, in a tuple, a copy of the value with all visible tensors on `device`. Returns the value itself if it has no
// visible tensor, or if it cannot be copied. Throws c10::ValueError, with the tensor's name, if a value that cannot be
// copied has a tensor on another device.
template <typename Arg>
auto on_device(Arg&& value, torch::Device device) {
  using Value = std::decay_t<Arg>;
  constexpr bool kMoves = std::is_same_v<Arg, Value> && std::is_move_constructible_v<Value>;
  if constexpr (KindOf<Value>::kTensors && (kMoves || KindOf<Value>::kCopies)) {
    std::tuple<Value> copy(std::forward<Arg>(value));
    const Leaf move = [&](torch::Tensor& tensor, const Path&) {
      if (tensor.defined()) tensor = tensor.to(device, /*non_blocking=*/!device.is_cpu());
    };
    visit</*lenient=*/true>(std::get<0>(copy), move, {});
    return copy;
  } else {
    if constexpr (KindOf<Value>::kTensors) {
      const Leaf check = [&](torch::Tensor& tensor, const Path& path) { check_is_on(device, tensor, path); };
      visit</*lenient=*/true>(const_cast<Value&>(value), check, {nullptr, "input"});  // changes nothing
    }
    return std::tuple<Arg&&>(std::forward<Arg>(value));
  }
}

}  // namespace detail

// Returns one value for each device, but fewer if there are too few rows. Without a tensor to split, every device gets
// a value. Keeps the autograd graph. Parts on the tensors' own device are views.
template <typename T>
std::vector<T> scatter(const T& value, const std::vector<torch::Device>& devices, std::int64_t dim = 0) {
  T source = value;
  const detail::Tensors found = detail::collect(source, {nullptr, "value"});
  const std::vector<std::int64_t> lengths = detail::plan_split(found, devices.size(), dim);
  std::vector<T> result;
  for (std::size_t part = 0; part < (lengths.empty() ? devices.size() : lengths.size()); ++part) {
    std::vector<torch::Tensor> tensors;
    for (std::size_t i = 0; i < found.tensors.size(); ++i) {
      const torch::Tensor piece = detail::part_of(found, i, lengths, part, dim);
      // A copy to the CPU blocks, because nobody would wait for the bytes later.
      tensors.push_back(piece.defined() ? piece.to(devices[part], /*non_blocking=*/!devices[part].is_cpu()) : piece);
    }
    detail::replace(result.emplace_back(source), tensors);
  }
  return result;
}

// Puts values of the same structure together on `device`; tensors without dimensions become a vector with an element
// for each value. Plain values must be equal. Keeps the autograd graph.
template <typename T>
T gather(std::vector<T> values, torch::Device device, std::int64_t dim = 0) {
  TORCH_CHECK_VALUE(!values.empty(), "gather: expected at least one value, got none");
  const detail::Path path{nullptr, "result"};
  std::vector<detail::Tensors> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) detail::check_same(values.front(), values[i], i, path);
    found.push_back(detail::collect(values[i], path));
  }
  std::vector<torch::Tensor> joined;
  for (std::size_t i = 0; i < found.front().tensors.size(); ++i) {
    std::vector<torch::Tensor> parts;
    parts.reserve(found.size());
    for (const detail::Tensors& part : found) parts.push_back(part.tensors[i]);
    joined.push_back(detail::join(parts, device, dim, found.front().names[i]));
  }
  detail::replace(values.front(), joined);
  return std::move(values.front());
}

}  // namespace lockstep::parallel
