// TensorBoard's messages, and the records of its event files. Numbers of fields are those of tensorboard/compat/proto
// (event, summary).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::report {

// CRC-32C (Castagnoli, RFC 3720), the checksum of TFRecord files. zlib has the other CRC-32 only.
std::uint32_t crc32c(std::string_view bytes);

// One value of a Summary. `tag` must be UTF-8, as all text.
std::string scalar_value(std::string_view tag, double value);

// The first record of a file.
std::string version_record(double wall_time);
std::string summary_record(double wall_time, std::int64_t step, std::string_view value);
// A session of a run begins with this step.
std::string start_record(double wall_time, std::int64_t step);

}  // namespace lockstep::report
