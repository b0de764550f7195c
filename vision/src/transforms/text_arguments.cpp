#include "transforms/text_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "lockstep/data/errors.h"

namespace lockstep::data::text {

using Kind = TextValue::Kind;

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

void refuse(const std::string& text) {
  throw DataError(ErrorCode::kInvalidArgument, text);
}

bool is_none(const TextValue& value) {
  return value.kind == Kind::kWord && lower(value.word) == "none";
}

void read(const TextValue& value, double& into) {
  if (value.kind != Kind::kNumber) refuse("expected a number");
  into = value.number;
}
void read(const TextValue& value, int& into) {
  double number = 0;
  read(value, number);
  if (number != std::trunc(number) || std::abs(number) > 1e9)
    refuse(fmt::format("expected a whole number, found {}", number));
  into = static_cast<int>(number);
}
void read(const TextValue& value, bool& into) {
  const std::string word = value.kind == Kind::kWord ? lower(value.word) : "";
  if (word != "true" && word != "false") refuse("expected True or False");
  into = word == "true";
}

template <typename T>
std::vector<T> list_of(const TextValue& value, std::size_t least, std::size_t most) {
  std::vector<T> list;
  if (value.kind == Kind::kNumber) {
    read(value, list.emplace_back());
  } else if (value.kind == Kind::kList) {
    for (const TextValue& item : value.items) read(item, list.emplace_back());
  } else {
    refuse("expected a number or a list of numbers");
  }
  if (list.size() < least || list.size() > most) {
    refuse(least == most ? fmt::format("expected {} numbers, found {}", least, list.size())
                         : fmt::format("expected {} to {} numbers, found {}", least, most, list.size()));
  }
  return list;
}

// Makes a Type from one number or two.
template <typename Type, typename Number>
void read_one_or_two(const TextValue& value, Type& into) {
  const auto list = list_of<Number>(value, 1, 2);
  into = list.size() == 1 ? Type(list[0]) : Type(list[0], list[1]);
}

void read(const TextValue& value, OutputSize& into) {
  read_one_or_two<OutputSize, int>(value, into);
}
void read(const TextValue& value, KernelSize& into) {
  read_one_or_two<KernelSize, int>(value, into);
}
void read(const TextValue& value, AngleRange& into) {
  read_one_or_two<AngleRange, double>(value, into);
}
void read(const TextValue& value, Jitter& into) {
  into = Jitter();
  if (!is_none(value)) read_one_or_two<Jitter, double>(value, into);
}
void read(const TextValue& value, Interval01& into) {
  const auto list = list_of<double>(value, 2, 2);
  into = {list[0], list[1]};
}
void read(const TextValue& value, Point& into) {
  const auto list = list_of<double>(value, 2, 2);
  into = {list[0], list[1]};
}
void read(const TextValue& value, Padding& into) {
  const auto list = list_of<int>(value, 1, 4);
  if (list.size() == 3) refuse("expected 1, 2 or 4 numbers, found 3");
  if (list.size() == 1) into = Padding(list[0]);
  if (list.size() == 2) into = Padding(list[0], list[1]);
  if (list.size() == 4) into = Padding(list[0], list[1], list[2], list[3]);
}
void read(const TextValue& value, Fill& into) {
  if (is_none(value)) {
    into = Fill();
    return;
  }
  const auto list = list_of<int>(value, 1, 3);
  if (list.size() == 2) refuse("expected 1 or 3 numbers, found 2");
  for (std::size_t i = 0; i < 3; ++i) {
    const int level = list.size() == 1 ? list[0] : list[i];
    if (level < 0 || level > 255) refuse(fmt::format("expected 0 to 255, found {}", level));
    into.color[i] = static_cast<std::uint8_t>(level);
  }
}
void read(const TextValue& value, std::vector<double>& into) {
  into = is_none(value) ? std::vector<double>() : list_of<double>(value, 0, 1000);
}

std::size_t find_word(const TextValue& value, const std::vector<std::string>& known) {
  if (value.kind != Kind::kWord) refuse("expected a word");
  const std::string found = lower(value.word.substr(value.word.rfind('.') + 1));
  const auto at = std::find(known.begin(), known.end(), found);
  if (at == known.end()) refuse(fmt::format("expected one of {}, found '{}'", fmt::join(known, ", "), found));
  return static_cast<std::size_t>(at - known.begin());
}

void read(const TextValue& value, Interpolation& into) {
  if (value.kind == Kind::kNumber) {  // as in PIL
    int number = 0;
    read(value, number);
    constexpr std::array kOfPil{Interpolation::kNearest, Interpolation::kLanczos, Interpolation::kBilinear,
                                Interpolation::kBicubic, Interpolation::kBox,     Interpolation::kHamming};
    if (number < 0 || number > 5) refuse(fmt::format("expected one of PIL's numbers 0 to 5, found {}", number));
    into = kOfPil.at(static_cast<std::size_t>(number));
    return;
  }
  read_word<Interpolation>(value, into,
                           {{"nearest", Interpolation::kNearest},
                            {"nearest_exact", Interpolation::kNearest},  // the same for PIL's pictures
                            {"nearest-exact", Interpolation::kNearest},
                            {"bilinear", Interpolation::kBilinear},
                            {"bicubic", Interpolation::kBicubic},
                            {"box", Interpolation::kBox},
                            {"hamming", Interpolation::kHamming},
                            {"lanczos", Interpolation::kLanczos}});
}
void read(const TextValue& value, PaddingMode& into) {
  read_word<PaddingMode>(value, into,
                         {{"constant", PaddingMode::kConstant},
                          {"edge", PaddingMode::kEdge},
                          {"reflect", PaddingMode::kReflect},
                          {"symmetric", PaddingMode::kSymmetric}});
}
void read(const TextValue& value, std::variant<int, OutputSize>& into) {
  if (value.kind == Kind::kList && value.items.size() == 2) {
    OutputSize size(1);
    read(value, size);
    into = size;
  } else {
    into = list_of<int>(value, 1, 1)[0];
  }
}

std::vector<const TextValue*> arguments_of(const TextValue& call, const std::vector<ParameterName>& parameters) {
  std::vector<const TextValue*> found(parameters.size(), nullptr);
  std::string known;
  for (const ParameterName& parameter : parameters)
    known += (known.empty() ? "it has " : ", ") + std::string(parameter.name);
  if (known.empty()) known = "it has none";
  for (std::size_t i = 0; i < call.items.size(); ++i) {
    std::size_t at = i;
    if (const std::string& name = call.names[i]; !name.empty()) {
      for (at = 0; at < parameters.size() && parameters[at].name != name; ++at) continue;
      if (at == parameters.size()) refuse(fmt::format("no parameter '{}'; {}", name, known));
    }
    if (at >= parameters.size()) refuse(fmt::format("{} parameters are too many; {}", call.items.size(), known));
    if (found[at] != nullptr) refuse(fmt::format("parameter '{}' is there twice", parameters[at].name));
    found[at] = &call.items[i];
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].required && found[i] == nullptr)
      refuse(fmt::format("parameter '{}' is missing", parameters[i].name));
  }
  return found;
}

}  // namespace lockstep::data::text
