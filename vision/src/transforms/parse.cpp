#include "lockstep/transforms/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/word_distance.h"
#include "transforms/kind.h"

namespace lockstep::data {
namespace text {
namespace {

// The Kinds that have a text, by name.
const std::map<std::string_view, const Kind*>& kinds_by_name() {
  static const auto all = [] {
    std::map<std::string_view, const Kind*> found;
    for (const Kind& kind : all_kinds()) {
      if (kind.from_text) found.emplace(kind.name, &kind);
    }
    return found;
  }();
  return all;
}

std::string_view nearest(const std::string& name) {
  const auto less = [&](const auto& a, const auto& b) {
    return word_distance(name, a.first) < word_distance(name, b.first);
  };
  return std::min_element(kinds_by_name().begin(), kinds_by_name().end(), less)->first;
}

// As in "transforms.ToTensor()" or "T.ToTensor()".
std::string last_part(const std::string& word) {
  return word.substr(word.rfind('.') + 1);
}

Transform made(const TextValue& call) {
  if (call.kind != TextValue::Kind::kCall && call.kind != TextValue::Kind::kWord) refuse("expected a transform");
  const std::string name = last_part(call.word);
  const auto kind = kinds_by_name().find(name);
  if (kind == kinds_by_name().end())
    refuse(fmt::format("no transform '{}'; the nearest name is {}", name, nearest(name)));
  try {
    return kind->second->from_text(call);
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
void read_flat(const TextValue& value, std::vector<Transform>& into) {
  for (const TextValue& item : list_items(value)) append(item, into);
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
