// Zip files, as far as torch.save uses them (its entries are stored, never compressed) or Python reads them. The format
// is described in PKWARE's APPNOTE.TXT.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file/file_bytes.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

// Numbers and records of the format.
namespace zip {

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

}  // namespace zip

// An entry of a file from anyone.
struct ZipEntry {
  std::string name;
  std::uint64_t offset;    // of its bytes in the file
  std::uint64_t size;      // of its content
  std::uint32_t crc;       // 0 where the writer has calculated none (torch.serialization.set_crc32_options(False))
  std::uint64_t held = 0;  // bytes in the file; other than `size` only when it is compressed
  std::uint16_t method = 0;
};

// Returns the entries by ascending offset. No two of them share a byte or a name, and all lie inside the file, so
// reading all of them takes no more memory than the file; when they are deflated, as other programs do it, at most 64
// times as much and what is left of `allowance`, from which it is taken. Throws CheckpointError without the path:
// kCorrupt; kUnsupported for what torch.save never writes and Python does not read (encryption, several disks, other
// compression), and for more than these 64 times.
std::vector<ZipEntry> read_zip_directory(const FileBytes& file, ReadAllowance& allowance);

// Reads an entry and compares its CRC. Throws CheckpointError without the path: kCorrupt, kIo. `out` has room for
// entry.size bytes.
void read_zip_entry(const FileBytes& file, const ZipEntry& entry, void* out);

// Writes as torch.save does: entries are stored, and their bytes begin at multiples of 64, so that a reader can map
// them.
class ZipWriter {
 public:
  static constexpr std::uint64_t kAlignment = 64;

  // Appends to `out`, which must be empty. Numbers from `zip64_from` on go to zip64 records; tests make it small.
  explicit ZipWriter(AtomicFile& out, std::uint64_t zip64_from = 0xFFFFFFFF) : out_(out), zip64_from_(zip64_from) {}

  Status add(std::string name, std::span<const std::uint8_t> bytes);
  Status add(std::string name, std::string_view bytes) {
    return add(std::move(name), {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  }
  // Appends the list of entries. Nothing may be added after it.
  Status finish();

 private:
  struct Entry {
    std::string name;
    std::uint64_t header;
    std::uint64_t size;
    std::uint32_t crc;
  };

  bool is_large(std::uint64_t number) const { return number >= zip64_from_; }
  std::uint32_t in_32_bits(std::uint64_t number) const;
  // What the local header and the directory's record have in the same order: from the version to the size of `extra`.
  std::string common_fields(const Entry& entry, bool zip64, std::size_t extra) const;
  std::string local_header(const Entry& entry) const;
  std::string directory_record(const Entry& entry) const;
  std::string end_records(std::uint64_t directory, std::uint64_t size) const;
  Status append(std::string_view bytes) {
    return out_.append({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  }

  AtomicFile& out_;
  std::uint64_t zip64_from_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::checkpoint
