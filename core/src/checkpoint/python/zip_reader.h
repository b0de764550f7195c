// The list of entries of a zip file from anyone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file/file_bytes.h"
#include "read_allowance.h"

namespace lockstep::checkpoint {

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

}  // namespace lockstep::checkpoint
