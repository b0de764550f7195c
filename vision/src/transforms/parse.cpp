#include "lockstep/transforms/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/word_distance.h"
#include "transforms/text_makers.h"

namespace lockstep::data {
namespace text {
namespace {

std::string nearest(const std::string& name) {
  const auto less = [&](const auto& a, const auto& b) {
    return word_distance(name, a.first) < word_distance(name, b.first);
  };
  return std::min_element(makers().begin(), makers().end(), less)->first;
}

// As in "transforms.ToTensor()" or "T.ToTensor()".
std::string last_part(const std::string& word) {
  return word.substr(word.rfind('.') + 1);
}

Transform made(const TextValue& call) {
  if (call.kind != TextValue::Kind::kCall && call.kind != TextValue::Kind::kWord) refuse("expected a transform");
  const std::string name = last_part(call.word);
  const auto maker = makers().find(name);
  if (maker == makers().end()) refuse(fmt::format("no transform '{}'; the nearest name is {}", name, nearest(name)));
  Arguments arguments(call);
  try {
    Transform transform = maker->second(arguments);
    arguments.finish();
    return transform;
  } catch (const DataError& error) {
    refuse(fmt::format("{}: {}", name, error.what()));
  }
}

// A Compose outside of lists is its transforms.
void append(const TextValue& call, std::vector<Transform>& into) {
  Transform transform = made(call);
  if (last_part(call.word) != "Compose") {
    into.push_back(std::move(transform));
    return;
  }
  for (Transform& inner : std::get<RandomApply>(transform).transforms) into.push_back(std::move(inner));
}

const std::vector<TextValue>& list_items(const TextValue& value) {
  if (value.kind != TextValue::Kind::kList) refuse("expected a list of transforms");
  return value.items;
}

}  // namespace

void read(const TextValue& value, std::vector<Transform>& into) {
  into.clear();
  for (const TextValue& item : list_items(value)) into.push_back(made(item));
}
void read(const TextValue& value, TransformSequence& into) {
  for (const TextValue& item : list_items(value)) append(item, into.transforms);
}

}  // namespace text

Result<std::vector<Transform>> parse_transforms(const std::vector<std::string>& texts) {
  std::vector<Transform> transforms;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto call = parse_call(texts[i]);
    if (!call.ok()) return call.status().with_context(fmt::format("transform {}, \"{}\"", i, texts[i]));
    try {
      text::append(call.value(), transforms);
    } catch (const DataError& error) {
      return Status(error.code(), fmt::format("transform {}, \"{}\": {}", i, texts[i], error.what()));
    }
  }
  return transforms;
}

}  // namespace lockstep::data
