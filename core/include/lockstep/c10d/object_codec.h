// ObjectCodec<T>: a value of type T as bytes and back, for the object collectives (objects.h).
//
// There are codecs for
//   - numbers, enums and other trivially copyable types without pointers in them: their memory is sent, since all ranks
//     run the same binary
//   - std::string
//   - at::Tensor (any dtype, shape and layout, also undefined) and c10::IValue (everything that torch::pickle_save
//     takes). A tensor arrives on the device with the same number as the sender's: send CPU tensors if the ranks use
//     GPUs with different numbers
//   - std::vector, std::array, std::set, std::unordered_set, std::map, std::unordered_map, std::optional, std::pair,
//     std::tuple of values that have codecs
//   - everything that torch::save can write and torch::load can read: modules (nn::Linear and other holders,
//     std::shared_ptr to a module), optimizers. Only their parameters, buffers and state are sent: broadcast_object
//     fills the receiver's own object, which must have the same structure. A module's tensors keep their memory, and
//     all tensors keep their devices. c10::ValueError if a tensor has another shape; then nothing has changed. To
//     arrive as a new object (all_gather_object, ...) a module needs a default constructor.
//   - a struct with fields() (fields.h): the fields are sent. An existing object keeps what fields() does not list. A
//     new object needs a default constructor
// For another type, specialise it: encode() and decode() as in ObjectCodec<std::string> below.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/base/fields.h"
#include "lockstep/c10d/errors.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

template <typename T>
struct ObjectCodec;

class ObjectWriter {
 public:
  template <typename T>
  void put(const T& value) {
    ObjectCodec<T>::encode(value, *this);
  }
  void put_raw(const void* data, std::size_t bytes) { bytes_.append(static_cast<const char*>(data), bytes); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Throws ArgumentError when the bytes end too early: sender and receiver use different types.
class ObjectReader {
 public:
  explicit ObjectReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    return ObjectCodec<T>::decode(*this);
  }
  // Reads into an existing object. Its type need not be one that can be made from bytes.
  template <typename T>
  void get_into(T& value) {
    if constexpr (requires { ObjectCodec<T>::decode_into(*this, value); }) {
      ObjectCodec<T>::decode_into(*this, value);
    } else {
      value = get<T>();
    }
  }
  std::string_view get_raw(std::size_t bytes) {
    if (bytes > bytes_.size()) {
      throw ArgumentError(ErrorCode::kInvalidArgument, c10::str("object: expected ", bytes, " more bytes, found ",
                                                                bytes_.size(), "; all ranks must name the same type"));
    }
    const std::string_view part = bytes_.substr(0, bytes);
    bytes_.remove_prefix(bytes);
    return part;
  }
  // Throws ArgumentError when bytes are left over.
  void check_end() const {
    if (bytes_.empty()) return;
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        c10::str("object: ", bytes_.size(), " bytes too many; all ranks must name the same type"));
  }

 private:
  std::string_view bytes_;
};

namespace object_codec {

// Types that own memory elsewhere have codecs of their own; raw pointers mean nothing on another rank.
template <typename T>
inline constexpr bool kIsRaw =
    std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_same_v<T, std::string_view>;

// The types that torch::save and torch::load take.
template <typename T>
concept Archived = requires(torch::serialize::OutputArchive& output, torch::serialize::InputArchive& input,
                            const T& from, T& to) {
  output << from;
  input >> to;
};

// An object for torch::load to fill; nullptr_t if no object can be made.
template <typename T>
struct Maker {
  static auto make() {
    if constexpr (std::is_default_constructible_v<T>) {
      return T();
    } else {
      return nullptr;
    }
  }
};
// A module holder declares a default constructor even if the contained module has none.
template <typename T>
requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>
struct Maker<T> {
  static auto make() {
    if constexpr (std::is_default_constructible_v<typename T::ContainedType>) {
      return T();
    } else {
      return nullptr;
    }
  }
};
// torch::load could not fill a null pointer.
template <typename T>
struct Maker<std::shared_ptr<T>> {
  static auto make() {
    if constexpr (std::is_default_constructible_v<T> && !std::is_same_v<T, torch::nn::Module>) {
      return std::make_shared<T>();
    } else {
      return nullptr;
    }
  }
};
template <typename T>
inline constexpr bool kIsModule = std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;
template <typename T>
inline constexpr bool kIsModule<std::shared_ptr<T>> = std::is_base_of_v<torch::nn::Module, T>;

// Fill an object from bytes that torch::save has written.
void load(torch::nn::Module& module, const std::string& bytes);
void load(torch::optim::Optimizer& optimizer, const std::string& bytes);

template <typename T>
inline constexpr bool kCanMake = !std::is_same_v<decltype(Maker<T>::make()), std::nullptr_t>;

}  // namespace object_codec

// Types without a specialisation below: raw memory, or torch::save.
template <typename T>
struct ObjectCodec {
  static_assert(
      object_codec::kIsRaw<T> || object_codec::Archived<T>,
      "this type has no ObjectCodec: list its values by fields() (fields.h), specialise lockstep::ObjectCodec "
      "for it, or hold a module in its holder or a std::shared_ptr");

  static void encode(const T& value, ObjectWriter& writer) {
    if constexpr (object_codec::kIsRaw<T>) {
      writer.put_raw(&value, sizeof(T));
    } else {
      std::ostringstream stream;
      torch::save(value, stream);
      writer.put(stream.str());
    }
  }
  static T decode(ObjectReader& reader) {
    if constexpr (object_codec::kIsRaw<T>) {
      T value{};
      std::memcpy(&value, reader.get_raw(sizeof(T)).data(), sizeof(T));
      return value;
    } else {
      static_assert(object_codec::kCanMake<T>,
                    "an object of this type cannot be made here, since it has no default constructor; broadcast_object "
                    "fills an existing one, or send its parameters");
      T value = object_codec::Maker<T>::make();
      decode_into(reader, value);
      return value;
    }
  }
  static void decode_into(ObjectReader& reader, T& value) requires(!object_codec::kIsRaw<T>) {
    const std::string bytes = reader.get<std::string>();
    if constexpr (object_codec::kIsModule<T>) {
      TORCH_CHECK(static_cast<bool>(value), "object: expected a module to fill, found a null pointer");
      object_codec::load(*value, bytes);
    } else if constexpr (std::is_base_of_v<torch::optim::Optimizer, T>) {
      object_codec::load(value, bytes);
    } else {
      std::istringstream stream(bytes);
      torch::load(value, stream);
    }
  }
};

template <HasFields T>
struct ObjectCodec<T> {
  static void encode(const T& value, ObjectWriter& writer) {
    std::apply([&](const auto&... field) { (writer.put(field), ...); }, fields(const_cast<T&>(value)));  // only read
  }
  static T decode(ObjectReader& reader) {
    T value{};
    decode_into(reader, value);
    return value;
  }
  static void decode_into(ObjectReader& reader, T& value) {
    std::apply([&](auto&... field) { (reader.get_into(field), ...); }, fields(value));
  }
};

template <>
struct ObjectCodec<std::string> {
  static void encode(const std::string& value, ObjectWriter& writer) {
    writer.put<std::uint64_t>(value.size());
    writer.put_raw(value.data(), value.size());
  }
  static std::string decode(ObjectReader& reader) {
    const auto size = reader.get<std::uint64_t>();
    return std::string(reader.get_raw(size));
  }
};

template <>
struct ObjectCodec<c10::IValue> {
  static void encode(const c10::IValue& value, ObjectWriter& writer);
  static c10::IValue decode(ObjectReader& reader);
};

template <>
struct ObjectCodec<at::Tensor> {
  static void encode(const at::Tensor& value, ObjectWriter& writer) {
    writer.put<bool>(value.defined());
    if (value.defined()) writer.put(c10::IValue(value));
  }
  static at::Tensor decode(ObjectReader& reader) {
    return reader.get<bool>() ? reader.get<c10::IValue>().toTensor() : at::Tensor();
  }
};

// The number of entries, and each of them.
template <typename List, typename Entry>
struct ObjectListCodec {
  static void encode(const List& value, ObjectWriter& writer) {
    writer.put<std::uint64_t>(value.size());
    for (const auto& entry : value) {
      if constexpr (requires {
                      typename List::mapped_type;
                    }) {  // an Entry would be a copy: the key of `entry` is const
        writer.put<typename List::key_type>(entry.first);
        writer.put<typename List::mapped_type>(entry.second);
      } else {
        writer.put<Entry>(entry);
      }
    }
  }
  static List decode(ObjectReader& reader) {
    List value;
    for (auto left = reader.get<std::uint64_t>(); left > 0; --left) value.insert(value.end(), reader.get<Entry>());
    return value;
  }
};
template <typename T>
struct ObjectCodec<std::vector<T>> : ObjectListCodec<std::vector<T>, T> {};
template <typename T>
struct ObjectCodec<std::set<T>> : ObjectListCodec<std::set<T>, T> {};
template <typename T>
struct ObjectCodec<std::unordered_set<T>> : ObjectListCodec<std::unordered_set<T>, T> {};
template <typename K, typename V>
struct ObjectCodec<std::map<K, V>> : ObjectListCodec<std::map<K, V>, std::pair<K, V>> {};
template <typename K, typename V>
struct ObjectCodec<std::unordered_map<K, V>> : ObjectListCodec<std::unordered_map<K, V>, std::pair<K, V>> {};

template <typename T, std::size_t N>
struct ObjectCodec<std::array<T, N>> {
  static void encode(const std::array<T, N>& value, ObjectWriter& writer) {
    for (const T& entry : value) writer.put<T>(entry);
  }
  static std::array<T, N> decode(ObjectReader& reader) { return decode(reader, std::make_index_sequence<N>()); }

 private:
  template <std::size_t... I>
  static std::array<T, N> decode(ObjectReader& reader, std::index_sequence<I...>) {
    return {{(static_cast<void>(I), reader.get<T>())...}};
  }
};

template <typename T>
struct ObjectCodec<std::optional<T>> {
  static void encode(const std::optional<T>& value, ObjectWriter& writer) {
    writer.put<bool>(value.has_value());
    if (value) writer.put<T>(*value);
  }
  static std::optional<T> decode(ObjectReader& reader) {
    if (!reader.get<bool>()) return std::nullopt;
    return reader.get<T>();
  }
};

template <typename A, typename B>
struct ObjectCodec<std::pair<A, B>> {
  static void encode(const std::pair<A, B>& value, ObjectWriter& writer) {
    writer.put<A>(value.first);
    writer.put<B>(value.second);
  }
  static std::pair<A, B> decode(ObjectReader& reader) {
    auto first = reader.get<A>();
    return {std::move(first), reader.get<B>()};
  }
};

template <typename... T>
struct ObjectCodec<std::tuple<T...>> {
  static void encode(const std::tuple<T...>& value, ObjectWriter& writer) {
    std::apply([&](const T&... entries) { (writer.put<T>(entries), ...); }, value);
  }
  // Braces, unlike parentheses, fix the order of evaluation.
  static std::tuple<T...> decode(ObjectReader& reader) { return std::tuple<T...>{reader.get<T>()...}; }
};

}  // namespace lockstep
