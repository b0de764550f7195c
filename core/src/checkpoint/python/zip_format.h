// Numbers and records of zip files, as far as torch.save uses them (its entries are stored, never compressed) or Python
// reads them. The format is described in PKWARE's APPNOTE.TXT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::checkpoint::zip {

inline constexpr std::uint32_t kLocalHeader = 0x04034b50;
inline constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
inline constexpr std::uint32_t kEnd = 0x06054b50;
inline constexpr std::uint32_t kZip64End = 0x06064b50;
inline constexpr std::uint32_t kZip64Locator = 0x07064b50;

inline constexpr std::size_t kLocalHeaderBytes = 30;
inline constexpr std::size_t kDirectoryEntryBytes = 46;
inline constexpr std::size_t kEndBytes = 22;
inline constexpr std::size_t kZip64EndBytes = 56;
inline constexpr std::size_t kZip64LocatorBytes = 20;

inline constexpr std::uint16_t kDeflated = 8;  // a method
inline constexpr std::uint16_t kZip64Extra = 0x0001;
inline constexpr std::uint16_t kPaddingExtra = 0x4246;  // "FB", which torch.save uses for the same purpose
inline constexpr std::uint16_t kEncrypted = 1;          // bits of the flags
inline constexpr std::uint16_t kUtf8Names = 1 << 11;

inline constexpr std::uint32_t k32 = 0xFFFFFFFF;  // the number is in a zip64 record
inline constexpr std::uint16_t k16 = 0xFFFF;

// A little-endian number of sizeof(T) bytes at `offset`, which must lie inside of `bytes`.
template <typename T>
T number_at(std::string_view bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value |
                           static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i)));
  }
  return value;
}

template <typename T>
void append_number(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

}  // namespace lockstep::checkpoint::zip
