// How samples become a batch, by their type. The rules are those of torch.utils.data.default_collate:
//
//   - tensors of equal shape and type are stacked: n tensors [...] become one [n, ...];
//   - numbers become a tensor [n]: int64 for all integers, bool, float and double as they are; integers from 2^63 on
//     are refused;
//   - tuples, pairs, arrays, vectors, std::map and std::unordered_map with string keys, and torch::data::Example become
//     the same with the batch of each element; vectors need equal lengths, maps equal keys;
//   - everything else, such as strings, becomes a std::vector of the n values.
//
// A struct with fields() (fields.h) becomes the same struct, with the batch of each field. The fields are tensors, or
// tuples, vectors, maps and structs of tensors: the batch has to have the same type. The loader also finds the tensors
// of a batch by fields(), to copy them to a device.
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/fields.h"
#include "lockstep/data/sample_context.h"

namespace lockstep::data {

// `data` and `target` of one sample, or of a batch of them.
using Example = torch::data::Example<>;

// Where a column's values lie within their samples, for messages: `["label"][1]`. Empty: the values are the samples.
struct Column {
  const SampleContext& context;
  std::string place = {};

  Column element(std::size_t number) const { return {context, place + "[" + std::to_string(number) + "]"}; }
  Column key(const std::string& name) const { return {context, place + "[\"" + name + "\"]"}; }
  Column named(const std::string& name) const { return {context, place.empty() ? name : place + " " + name}; }
};

// Stacks tensors, in memory from the column's context. Throws DataError (kMismatch) that names the first position that
// differs.
torch::Tensor stack_tensors(const std::vector<torch::Tensor>& tensors, const Column& column);
// Throws DataError (kMismatch).
void require_equal_lengths(std::size_t first, std::size_t other, std::size_t position, const Column& column);
// Throws DataError (kInvalidArgument) for 0.
void require_samples(std::size_t samples);
// Throws DataError (kInvalidArgument) for a number that int64 does not have.
void require_int64(std::uint64_t number, std::size_t position, const Column& column);
[[noreturn]] void throw_other_keys(const std::string& key, std::size_t position, const Column& column);

// Makes a batch by the rules above; this general form is for every type without a rule. Specialise it for a container
// of your own.
template <typename T>
struct Collate {
  using Batch = std::vector<T>;
  static Batch collate(std::vector<T> samples, const Column& /*column*/) { return samples; }
};

// The type of a batch of samples of type T.
template <typename T>
using BatchOf = typename Collate<T>::Batch;

template <>
struct Collate<torch::Tensor> {
  using Batch = torch::Tensor;
  static Batch collate(const std::vector<torch::Tensor>& samples, const Column& column) {
    return stack_tensors(samples, column);
  }
};

template <typename T>
requires std::is_arithmetic_v<T>
struct Collate<T> {
  using Batch = torch::Tensor;
  using Stored = std::conditional_t<std::is_floating_point_v<T> || std::is_same_v<T, bool>, T, std::int64_t>;
  static Batch collate(const std::vector<T>& samples, const Column& column) {
    torch::Tensor batch =
        torch::empty({static_cast<std::int64_t>(samples.size())}, c10::CppTypeToScalarType<Stored>::value);
    Stored* out = batch.mutable_data_ptr<Stored>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if constexpr (std::is_unsigned_v<T> && sizeof(T) == sizeof(std::int64_t)) require_int64(samples[i], i, column);
      out[i] = static_cast<Stored>(samples[i]);
    }
    return batch;
  }
};

// Samples with a fixed number of elements that std::get finds. `B`: the same container, with the batch of each element.
template <typename T, typename B>
struct CollateElements {
  using Batch = B;
  static Batch collate(std::vector<T> samples, const Column& column) {
    return collate_all(samples, column, std::make_index_sequence<std::tuple_size_v<T>>());
  }

 private:
  template <std::size_t... I>
  static Batch collate_all(std::vector<T>& samples, const Column& column, std::index_sequence<I...> /*all*/) {
    return Batch{collate_element<I>(samples, column.element(I))...};
  }
  template <std::size_t I>
  static auto collate_element(std::vector<T>& samples, const Column& column) {
    using Element = std::tuple_element_t<I, T>;
    std::vector<Element> values;
    values.reserve(samples.size());
    for (T& sample : samples) values.push_back(std::move(std::get<I>(sample)));
    return Collate<Element>::collate(std::move(values), column);
  }
};
template <typename... T>
struct Collate<std::tuple<T...>> : CollateElements<std::tuple<T...>, std::tuple<BatchOf<T>...>> {};
template <typename T, typename U>
struct Collate<std::pair<T, U>> : CollateElements<std::pair<T, U>, std::pair<BatchOf<T>, BatchOf<U>>> {};
template <typename T, std::size_t N>
struct Collate<std::array<T, N>> : CollateElements<std::array<T, N>, std::array<BatchOf<T>, N>> {};

template <typename T>
struct Collate<std::vector<T>> {
  using Batch = std::vector<BatchOf<T>>;
  static Batch collate(std::vector<std::vector<T>> samples, const Column& column) {
    for (std::size_t i = 1; i < samples.size(); ++i) {
      require_equal_lengths(samples[0].size(), samples[i].size(), i, column);
    }
    Batch batch;
    for (std::size_t element = 0; element < samples[0].size(); ++element) {
      std::vector<T> values;
      values.reserve(samples.size());
      for (std::vector<T>& sample : samples) values.push_back(std::move(sample[element]));
      batch.push_back(Collate<T>::collate(std::move(values), column.element(element)));
    }
    return batch;
  }
};

template <typename M, typename B>
struct CollateMap {
  using Batch = B;
  static Batch collate(std::vector<M> samples, const Column& column) {
    using Value = typename M::mapped_type;
    Batch batch;
    for (const auto& entry : samples[0]) {
      const std::string& key = entry.first;
      std::vector<Value> values;
      values.reserve(samples.size());
      for (std::size_t i = 1; i < samples.size(); ++i) {
        if (samples[i].find(key) == samples[i].end()) throw_other_keys(key, i, column);
      }
      for (M& sample : samples) values.push_back(std::move(sample.find(key)->second));
      batch.emplace(key, Collate<Value>::collate(std::move(values), column.key(key)));
    }
    for (std::size_t i = 1; i < samples.size(); ++i) {
      for (const auto& entry : samples[i]) {
        if (batch.find(entry.first) == batch.end()) throw_other_keys(entry.first, i, column);
      }
    }
    return batch;
  }
};
template <typename T>
struct Collate<std::map<std::string, T>> : CollateMap<std::map<std::string, T>, std::map<std::string, BatchOf<T>>> {};
template <typename T>
struct Collate<std::unordered_map<std::string, T>>
    : CollateMap<std::unordered_map<std::string, T>, std::unordered_map<std::string, BatchOf<T>>> {};

template <typename D, typename T>
struct Collate<torch::data::Example<D, T>> {
  using Batch = torch::data::Example<BatchOf<D>, BatchOf<T>>;
  static Batch collate(std::vector<torch::data::Example<D, T>> samples, const Column& column) {
    std::vector<D> data;
    std::vector<T> targets;
    data.reserve(samples.size());
    targets.reserve(samples.size());
    for (auto& sample : samples) {
      data.push_back(std::move(sample.data));
      targets.push_back(std::move(sample.target));
    }
    return {Collate<D>::collate(std::move(data), column.named("data")),
            Collate<T>::collate(std::move(targets), column.named("target"))};
  }
};
template <typename D>
struct Collate<torch::data::Example<D, torch::data::example::NoTarget>> {
  using Batch = torch::data::Example<BatchOf<D>, void>;
  static Batch collate(std::vector<torch::data::Example<D, torch::data::example::NoTarget>> samples,
                       const Column& column) {
    std::vector<D> data;
    data.reserve(samples.size());
    for (auto& sample : samples) data.push_back(std::move(sample.data));
    return {Collate<D>::collate(std::move(data), column.named("data"))};
  }
};

// A struct with fields().
template <HasFields T>
struct Collate<T> {
  using Batch = T;
  static Batch collate(std::vector<T> samples, const Column& column) {
    using Fields = decltype(fields(samples[0]));
    collate_all<Fields>(samples, column, std::make_index_sequence<std::tuple_size_v<Fields>>());
    return std::move(samples[0]);
  }

 private:
  template <typename Fields, std::size_t... I>
  static void collate_all(std::vector<T>& samples, const Column& column, std::index_sequence<I...> /*all*/) {
    (collate_field<std::remove_reference_t<std::tuple_element_t<I, Fields>>, I>(samples, column), ...);
  }
  // The first sample becomes the batch.
  template <typename Field, std::size_t I>
  static void collate_field(std::vector<T>& samples, const Column& column) {
    static_assert(
        std::is_same_v<BatchOf<Field>, Field>,
        "the batch of this field has another type than the field: make it a tensor, or leave fields() out and "
        "give the loader a collate function, as DataLoaderOf<Sample, Batch>");
    std::vector<Field> values;
    values.reserve(samples.size());
    for (T& sample : samples) values.push_back(std::move(std::get<I>(fields(sample))));
    std::get<I>(fields(samples[0])) =
        Collate<Field>::collate(std::move(values), column.named("field " + std::to_string(I)));
  }
};

// The batch of one or more samples. Throws DataError: kMismatch for samples that do not fit together, kInvalidArgument
// for integers that int64 does not have. Most types move out of `samples`; numbers only read them.
template <typename T>
// NOLINTNEXTLINE(performance-unnecessary-value-param)
BatchOf<T> collate(std::vector<T> samples, const SampleContext& context = {}) {
  require_samples(samples.size());
  return Collate<T>::collate(std::move(samples), Column{context});
}

// Whether a batch of this type has tensors that the loader finds: by the rules above, from the outside in.
template <typename T>
struct HoldsTensors : std::bool_constant<std::is_same_v<T, torch::Tensor>> {};
template <typename... T>
struct HoldsTensors<std::tuple<T...>> : std::bool_constant<(HoldsTensors<std::remove_reference_t<T>>::value || ...)> {};
template <typename T, typename U>
struct HoldsTensors<std::pair<T, U>> : std::bool_constant<HoldsTensors<T>::value || HoldsTensors<U>::value> {};
template <typename T, std::size_t N>
struct HoldsTensors<std::array<T, N>> : HoldsTensors<T> {};
template <typename T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <typename K, typename T>
struct HoldsTensors<std::map<K, T>> : HoldsTensors<T> {};
template <typename K, typename T>
struct HoldsTensors<std::unordered_map<K, T>> : HoldsTensors<T> {};
template <typename D, typename T>
struct HoldsTensors<torch::data::Example<D, T>> : std::bool_constant<HoldsTensors<D>::value || HoldsTensors<T>::value> {
};
template <typename D>
struct HoldsTensors<torch::data::Example<D, torch::data::example::NoTarget>> : HoldsTensors<D> {};
template <HasFields T>
struct HoldsTensors<T> : HoldsTensors<decltype(fields(std::declval<T&>()))> {};

// Calls visit(tensor) for each tensor of a batch; visit() may replace the tensors.
template <typename T, typename Visit>
void for_each_tensor(T& batch, const Visit& visit) {
  [[maybe_unused]] const auto visit_all = [&visit](auto&... parts) { (for_each_tensor(parts, visit), ...); };
  if constexpr (!HoldsTensors<T>::value) {
    return;
  } else if constexpr (std::is_same_v<T, torch::Tensor>) {
    visit(batch);
  } else if constexpr (HasFields<T>) {
    std::apply(visit_all, fields(batch));
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply(visit_all, batch);
  } else if constexpr (requires {
                         batch.data;
                         batch.target;
                       }) {
    visit_all(batch.data, batch.target);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& entry : batch) for_each_tensor(entry.second, visit);
  } else if constexpr (requires { batch.begin(); }) {
    for (auto& part : batch) for_each_tensor(part, visit);
  } else {
    for_each_tensor(batch.data, visit);
  }
}

}  // namespace lockstep::data
