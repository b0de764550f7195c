#include "checkpoint/file/crc32.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <random>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// Every instruction set, length, alignment and beginning against zlib.
TEST(Crc32, IsThatOfZlib) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(1 << 16);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  const auto expect_equal = [&](InstructionSet set, std::size_t at, std::size_t count, std::uint32_t before) {
    EXPECT_EQ(crc32_of(before, bytes.data() + at, count, set), ::crc32_z(before, bytes.data() + at, count))
        << to_string(set) << ": " << count << " bytes from " << at << " on, after " << before;
  };
  for (const InstructionSet set : supported_instruction_sets()) {
    for (std::size_t count = 0; count < 2500; ++count) {
      expect_equal(set, random() % 64, count, count % 2 == 0 ? 0 : static_cast<std::uint32_t>(random()));
    }
    for (int i = 0; i < 200; ++i)
      expect_equal(set, random() % 64, random() % 60'000, static_cast<std::uint32_t>(random()));
    for (std::size_t i = 0; i < bytes.size(); i += 4096) {  // bytes that are all alike
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(i), 4096, i % 8192 == 0 ? '\0' : '\xff');
    }
    expect_equal(set, 0, bytes.size(), 0);
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
