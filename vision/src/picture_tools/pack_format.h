// The layout of a pack, version 1. All numbers are little-endian.
//
//   header   kHeaderBytes, below
//   pictures one after another, with their own bytes
//   index    kEntryBytes for each: offset u64, length u32, label u32, CRC-32 u32, name's length u32, name's offset u64
//   names    class names, each with its length (u32) in front; then the pictures' names
#pragma once

#include <zlib.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace lockstep::data::pack_format {

static_assert(std::endian::native == std::endian::little, "packs are read as they lie in memory");

inline constexpr std::string_view kMagic = "LOCKPACK";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kEntryBytes = 32;

struct Header {
  std::array<char, 8> magic{};
  std::uint32_t version = kVersion;
  std::uint32_t classes = 0;
  std::uint64_t pictures = 0;
  std::uint64_t index_offset = 0;
  std::uint64_t names_offset = 0;
  std::uint64_t file_bytes = 0;
  std::uint32_t index_crc = 0;  // of the index and the names
  std::uint32_t reserved = 0;
  std::uint32_t more_reserved = 0;
  std::uint32_t header_crc = 0;  // of the header before this field
};
static_assert(sizeof(Header) == kHeaderBytes);

template <typename T>
T read_number(std::span<const std::uint8_t> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

inline std::uint32_t crc_of(std::span<const std::uint8_t> bytes, std::uint32_t before = 0) {
  return static_cast<std::uint32_t>(::crc32_z(before, bytes.data(), bytes.size()));
}

}  // namespace lockstep::data::pack_format
