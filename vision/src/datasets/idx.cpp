#include "idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/printable.h"
#include "gzip_file.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;

DataError corrupt(const std::filesystem::path& path, std::string_view what) {
  return DataError(ErrorCode::kCorrupt, fmt::format("{}: {}", printable(path.native()), what));
}

void read_all(GzipFile& file, const std::filesystem::path& path, std::span<std::uint8_t> out, std::string_view what) {
  const std::uint64_t offset = file.position();
  const std::size_t got = file.read(out);
  if (got == out.size()) return;
  throw corrupt(
      path, fmt::format("the file is too short: expected {} bytes of {} from byte {} on, found {}; get the file again",
                        out.size(), what, offset, got));
}

std::vector<std::int64_t> read_dimensions(GzipFile& file, const std::filesystem::path& path,
                                          std::span<const std::int64_t> expected) {
  std::array<std::uint8_t, 4> word{};
  read_all(file, path, word, "idx magic number");
  if (word[0] != 0 || word[1] != 0 || word[2] != kUnsignedByte || word[3] != expected.size()) {
    throw corrupt(path,
                  fmt::format("wrong magic number at byte 0: expected 00 00 08 {:02x} (unsigned bytes, {} dimensions), "
                              "found {:02x}; is this the right file?",
                              expected.size(), expected.size(), fmt::join(word, " ")));
  }
  std::vector<std::int64_t> dimensions;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    read_all(file, path, word, "idx dimensions");
    const std::int64_t found = (std::int64_t{word[0]} << 24) | (word[1] << 16) | (word[2] << 8) | word[3];
    if (expected[i] >= 0 && found != expected[i]) {
      throw corrupt(
          path, fmt::format("wrong dimension {} at byte {}: expected {}, found {}", i, 4 + 4 * i, expected[i], found));
    }
    dimensions.push_back(found);
  }
  return dimensions;
}

// UINT64_MAX on overflow, even if another dimension is 0: LibTorch multiplies them all.
std::uint64_t promised_bytes(const std::vector<std::int64_t>& dimensions) {
  std::int64_t product = 1;
  bool any_empty = false;
  for (const std::int64_t dimension : dimensions) {
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(dimension, 1), &product)) return UINT64_MAX;
    any_empty = any_empty || dimension == 0;
  }
  return any_empty ? 0 : static_cast<std::uint64_t>(product);
}

}  // namespace

torch::Tensor read_idx(const std::filesystem::path& path, std::span<const std::int64_t> expected) {
  GzipFile file(path);
  const std::vector<std::int64_t> dimensions = read_dimensions(file, path, expected);
  const std::uint64_t bytes = promised_bytes(dimensions);
  if (bytes > file.most_bytes()) {
    throw corrupt(path,
                  fmt::format("the header promises {} values ({}), more than the file can hold (at most {} bytes); the "
                              "file is truncated or damaged, get it again",
                              bytes, fmt::join(dimensions, " x "), file.most_bytes()));
  }
  torch::Tensor values = torch::empty(dimensions, torch::kUInt8);
  read_all(file, path, {values.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes)}, "values");
  // There must be no further byte. The attempt to read one also makes zlib verify the checksum.
  std::array<std::uint8_t, 1> more{};
  const std::uint64_t end = file.position();
  if (file.read(more) != 0) {
    throw corrupt(path, fmt::format("additional bytes: expected the end of the file at byte {} ({} values), found more",
                                    end, fmt::join(dimensions, " x ")));
  }
  return values;
}

}  // namespace lockstep::data
