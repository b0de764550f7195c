// What a transform is. Its struct (transforms.h) has its parameters with their defaults. Its `About`, in the file of
// its transforms (sizes.cpp, colors.cpp, ...), has the rest: its text, its check, where it may stand, how it is drawn.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/errors.h"
#include "transforms/step.h"
#include "transforms/text_arguments.h"

namespace lockstep::data {

// Throws DataError (kInvalidArgument): "transform 2 of Compose, Resize: expected ..., found ...".
struct Require {
  const std::string& place;  // "transform 2 of Compose"
  std::string_view name;     // of the transform
  std::string_view parameter = {};

  template <class T>
  void operator()(bool right, std::string_view expected, const T& found) const {
    if (!right) fail(expected, fmt::format("{}", found));
  }
  [[noreturn]] void fail(std::string_view expected, const std::string& found) const;
};

// --- Parameters: a table with a row for each

template <class T>
struct Parameter : text::ParameterName {
  std::function<void(const TextValue& value, T& transform)> read;
  std::function<void(const T& transform, const Require& require)> check = {};
};

struct AnyValue {
  void operator()(const auto& /*value*/, const Require& /*unused*/) const {}
};

// `check` takes the parameter's value and a Require.
template <class T, class Member, class Check = AnyValue>
Parameter<T> optional(const char* name, Member T::*member, Check check = {}) {
  return {{name, /*required=*/false},
          [member](const TextValue& value, T& transform) { text::read(value, transform.*member); },
          [name, member, check](const T& transform, const Require& require) {
            check(transform.*member, Require{require.place, require.name, name});
          }};
}
template <class T, class Member, class Check = AnyValue>
Parameter<T> required(const char* name, Member T::*member, Check check = {}) {
  Parameter<T> row = optional(name, member, check);
  row.required = true;
  return row;
}

constexpr int kLargestSide = 65536;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kAboveZero = std::numeric_limits<double>::min();
constexpr double kFinite = std::numeric_limits<double>::max();

void is_size(const OutputSize& size, const Require& require);
void is_padding(const Padding& padding, const Require& require);
void is_center(const std::optional<Point>& center, const Require& require);
void is_warp_filter(Interpolation interpolation, const Require& require);
void is_range(const Interval01& range, double low, double high, const Require& require);

inline auto between(double low, double high, const char* expected) {
  return [=](auto value, const Require& require) { require(value >= low && value <= high, expected, value); };
}
// For values with a low and a high end.
inline auto range(double low, double high) {
  return [=](const auto& value, const Require& require) { is_range({value.low, value.high}, low, high, require); };
}
template <class Check>
auto if_set(const Check& check) {
  return [check](const auto& value, const Require& require) {
    if (value) check(*value, require);
  };
}

// Rows that several transforms have.
template <class T>
Parameter<T> probability() {
  return optional("p", &T::p, between(0, 1, "a probability p from 0 to 1"));
}
template <class T>
Parameter<T> warp_filter() {
  return optional("interpolation", &T::interpolation, is_warp_filter);
}
template <class T>
Parameter<T> fill() {
  return optional("fill", &T::fill);
}

// --- Order

// What the transforms so far make of every sample.
struct SampleState {
  bool floats = false;
  bool floats_changed = false;  // a move of pixels can then no longer be done before the conversion
  std::size_t channels = 3;
  const Normalize* normalize = nullptr;  // the first
};

// The place of a transform. The methods say what the transform does there, and throw where it may not.
struct Place {
  SampleState& state;
  const Require& require;
  bool listed;  // in a list of transforms

  void changes_pixels() const;                // of bytes: before ToTensor
  void moves_pixels() const;                  // also after ToTensor
  void changes_floats() const;                // after ToTensor
  void changes_samples() const;               // the type or scale of all samples: not in a list
  void has_numbers(std::size_t count) const;  // one for all channels, or one for each channel
  void has_list(const std::vector<Transform>& list) const;
};

// --- Drawing

// A transform whose parameters are drawn for one sample.
struct Drawing {
  const SampleKey& key;
  std::int64_t stream;  // of random numbers
  Plan& plan;
  CounterRandom random{key, static_cast<std::uint16_t>(stream)};

  void add(Step step) const { add_step(plan, std::move(step)); }
  void add_with(double probability, Step step) {
    if (random.chance(probability)) add(std::move(step));
  }
};

// --- The whole

template <class T>
struct About {
  const char* name;
  T defaults = {};  // of a text
  std::vector<Parameter<T>> parameters = {};
  void (*draw)(const T& transform, Drawing& drawing);
  void (*stands)(const T& transform, const Place& place) = [](const T&, const Place& place) { place.changes_pixels(); };
  void (*check)(const T& transform, const Require& require) = nullptr;  // of several parameters together
  bool has_text = true;
};

// A text whose transform has another name.
template <class T>
struct AboutText {
  const char* name;
  T defaults = {};
  std::vector<Parameter<T>> parameters = {};
  Transform (*make)(T parameters);
};

template <class T>
T from_arguments(const TextValue& call, T into, const std::vector<Parameter<T>>& parameters) {
  const auto arguments = text::arguments_of(call, {parameters.begin(), parameters.end()});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (arguments[i] == nullptr) continue;
    try {
      parameters[i].read(*arguments[i], into);
    } catch (const DataError& error) {
      text::refuse(fmt::format("parameter '{}': {}", parameters[i].name, error.what()));
    }
  }
  return into;
}

// An About or AboutText, whatever the type of the transform is.
struct Kind {
  std::string_view name;
  std::size_t index = std::variant_npos;                           // in the variant Transform; an AboutText has none
  std::function<Transform(const TextValue& call)> from_text = {};  // empty: there is no text
  std::function<void(const Transform&, const Require&)> check = {};
  std::function<void(const Transform&, const Place&)> stands = {};
  std::function<void(const Transform&, Drawing&)> draw = {};

  template <class T>
  Kind(About<T> of);  // NOLINT(google-explicit-constructor)
  template <class T>
  Kind(AboutText<T> about)  // NOLINT(google-explicit-constructor)
      : name(about.name), from_text([about](const TextValue& call) {
          return about.make(from_arguments(call, about.defaults, about.parameters));
        }) {}
};

template <class T>
Kind::Kind(About<T> of) : name(of.name), index(Transform(of.defaults).index()) {
  const auto about = std::make_shared<const About<T>>(std::move(of));
  if (about->has_text) {
    from_text = [about](const TextValue& call) -> Transform {
      return from_arguments(call, about->defaults, about->parameters);
    };
  }
  check = [about](const Transform& transform, const Require& require) {
    const T& one = std::get<T>(transform);
    for (const Parameter<T>& row : about->parameters) {
      if (row.check) row.check(one, require);
    }
    if (about->check != nullptr) about->check(one, require);
  };
  stands = [stands = about->stands](const Transform& transform, const Place& place) {
    stands(std::get<T>(transform), place);
  };
  draw = [draw = about->draw](const Transform& transform, Drawing& drawing) { draw(std::get<T>(transform), drawing); };
}

// In the order of the variant Transform. Those that are only texts come last.
const std::vector<Kind>& all_kinds();
const Kind& kind_of(const Transform& transform);

// Throws for the first wrong transform.
SampleState check_transforms(const std::vector<Transform>& transforms);

}  // namespace lockstep::data
