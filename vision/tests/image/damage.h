// Files with the damage of a broken disk or an attacker; the same for the same state of `random`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace lockstep::test {

inline std::vector<std::uint8_t> damaged_once(std::vector<std::uint8_t> bytes, std::mt19937& random) {
  const auto place = [&] { return random() % bytes.size(); };
  const auto at = [&](std::size_t i) { return bytes.begin() + static_cast<std::ptrdiff_t>(std::min(i, bytes.size())); };
  switch (random() % 7) {
    case 0: bytes.resize(place() + 1); break;
    case 1:
      for (unsigned i = 0; i < 1 + random() % 8; ++i) bytes[place()] = static_cast<std::uint8_t>(random());
      break;
    case 2:
      bytes[random() % std::min<std::size_t>(bytes.size(), 64)] ^= static_cast<std::uint8_t>(1U << random() % 8);
      break;
    case 3: {  // a number with its largest, or its lowest, value
      const std::size_t begin = random() % std::min<std::size_t>(bytes.size(), 64);
      const std::uint8_t value = std::vector<std::uint8_t>{0x00, 0x7f, 0x80, 0xff}[random() % 4];
      std::fill(at(begin), at(begin + (1U << random() % 3)), value);
      break;
    }
    case 4: {  // repeats a piece
      const std::size_t begin = place();
      const std::vector<std::uint8_t> piece(at(begin), at(begin + random() % 64));
      bytes.insert(at(place()), piece.begin(), piece.end());
      break;
    }
    case 5: {  // repeats a piece many times
      const std::size_t begin = place();
      const std::vector<std::uint8_t> piece(at(begin), at(begin + 1 + random() % 4));
      const std::size_t to = place();
      for (int i = 0; i < 300; ++i) bytes.insert(at(to), piece.begin(), piece.end());
      break;
    }
    default: {  // removes a piece
      const std::size_t begin = place();
      bytes.erase(at(begin), at(begin + 1 + random() % 64));
      if (bytes.empty()) bytes.push_back(0);
    }
  }
  return bytes;
}

inline std::vector<std::uint8_t> damaged(const std::vector<std::uint8_t>& original, std::mt19937& random) {
  std::vector<std::uint8_t> bytes = damaged_once(original, random);
  while (random() % 4 == 0) bytes = damaged_once(std::move(bytes), random);
  return bytes;
}

}  // namespace lockstep::test
