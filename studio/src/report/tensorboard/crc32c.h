// CRC-32C (Castagnoli, RFC 3720), the checksum of TFRecord files. zlib has the other CRC-32 only.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::report {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::report
