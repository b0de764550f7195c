// Writes zip files as torch.save does: entries are stored, and their bytes begin at multiples of 64, so that a reader
// can map them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

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
