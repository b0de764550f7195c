// TensorBoard's messages, and the records of its event files. Numbers of fields are those of tensorboard/compat/proto
// (event, summary, tensor).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

// CRC-32C (Castagnoli, RFC 3720), the checksum of TFRecord files. zlib has the other CRC-32 only.
std::uint32_t crc32c(std::string_view bytes);

// Counts of values in the bins that PyTorch's SummaryWriter uses.
struct Histogram {
  double min = 0.0;
  double max = 0.0;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  std::int64_t count = 0;
  // The right edge and the count of each bin, from the first bin with values to the last. An empty bin is in front, so
  // that the left edge of the first is known.
  std::vector<double> limits;
  std::vector<double> counts;
};

// Of the finite values; nullopt when there is none.
std::optional<Histogram> histogram(std::span<const float> values);

// Each of these is one value of a Summary. `tag` must be UTF-8, as all text.
std::string scalar_value(std::string_view tag, double value);
std::string image_value(std::string_view tag, int width, int height, std::string_view png);
std::string histogram_value(std::string_view tag, const Histogram& histogram);
std::string text_value(std::string_view tag, std::string_view text);

// The first record of a file.
std::string version_record(double wall_time);
std::string summary_record(double wall_time, std::int64_t step, std::string_view value);
// A session of a run begins with this step.
std::string start_record(double wall_time, std::int64_t step);

}  // namespace lockstep::report
