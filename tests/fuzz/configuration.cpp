// What users write: YAML files of options, and transforms.
#include <string>

#include "config/document.h"
#include "fuzz/fuzz.h"
#include "lockstep/data/errors.h"
#include "lockstep/transforms/compose.h"
#include "lockstep/transforms/parse.h"

namespace lockstep::fuzz {
namespace {

void take_transforms(const std::string& text) {
  const auto transforms = data::parse_transforms({text});
  if (!transforms.ok()) return;
  try {
    data::Compose{transforms.value()};
  } catch (const data::DataError&) {
  }
}

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string input(bytes.substr(1));
  if (bytes[0] == 0) {
    config::Problems problems("config.yaml");
    (void)config::parse_document(input, problems);
  }
  if (bytes[0] == 1) take_transforms(input);
}

std::vector<std::string> seeds() {
  return {for_parser(0, "trainer:\n  epochs: 3\n  betas: [0.9, 0.999]  # Adam's\n  name: \"a b\"\n"),
          for_parser(0, "- a\n- {b: c, d: [1, 2]}\n- |\n  text\n"),
          for_parser(1, "RandomResizedCrop(224, scale=(0.2, 1.0))"),
          for_parser(1, "Normalize([0.5] * 3, [1/4, 256//2, -(1 - 0.25)])"),
          for_parser(1, "RandomApply([ColorJitter(0.4), RandomRotation(degrees=15)], p=0.3)")};
}

}  // namespace lockstep::fuzz
