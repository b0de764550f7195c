// Files of datasets: idx, plain and packed with gzip, and packs.
#include <array>

#include "datasets/idx.h"
#include "fuzz/fuzz.h"
#include "fuzz/memory_path.h"
#include "lockstep/data/errors.h"
#include "lockstep/picture_tools/pack.h"

namespace lockstep::fuzz {
namespace {

void take_idx(std::string_view bytes) {
  const std::array<std::int64_t, 3> expected{-1, 2, 2};
  try {
    (void)data::read_idx(MemoryPath(bytes).path(), expected);
  } catch (const data::DataError&) {
  }
}

void take_pack(std::string_view bytes) {
  const MemoryPath file(bytes);
  const auto pack = data::PackReader::open(file.path());
  if (!pack.ok()) return;
  for (std::int64_t i = 0; i < pack.value().size(); ++i) {
    const auto label = static_cast<std::size_t>(pack.value().label(i));
    require(label < pack.value().classes().size());
    (void)pack.value().name(i);
    (void)pack.value().verify(i);
  }
}

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  if (bytes[0] == 0) take_idx(bytes.substr(1));
  if (bytes[0] == 1) take_pack(bytes.substr(1));
}

std::vector<std::string> seeds() {
  const std::string idx(
      "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"
      "abcdefgh",
      24);
  const std::string pack = bytes_written([](const std::filesystem::path& path) {
    auto writer = data::PackWriter::create(path, {"cat", "dog"});
    require(writer.ok());
    const std::array<std::uint8_t, 4> picture{1, 2, 3, 4};
    require(writer.value().add(picture, 0, "cat/1.jpg").ok() && writer.value().add(picture, 1, "dog/2.jpg").ok());
    require(writer.value().finish().ok());
  });
  return {for_parser(0, idx), for_parser(1, pack)};
}

}  // namespace lockstep::fuzz
