// Packs with wrong contents and correct checksums.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "picture_tools/pack_format.h"

namespace lockstep::test {

// Corrects the checksums whose data is inside of the file.
inline void fix_pack_checksums(std::vector<std::uint8_t>& bytes) {
  using data::pack_format::Header;
  if (bytes.size() < sizeof(Header)) return;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.file_bytes = bytes.size();
  if (header.index_offset <= bytes.size()) {
    header.index_crc = static_cast<std::uint32_t>(
        ::crc32_z(0, bytes.data() + header.index_offset, bytes.size() - header.index_offset));
  }
  const auto* raw = reinterpret_cast<const std::uint8_t*>(&header);
  header.header_crc = static_cast<std::uint32_t>(::crc32_z(0, raw, offsetof(Header, header_crc)));
  std::memcpy(bytes.data(), &header, sizeof header);
}

}  // namespace lockstep::test
