// The JSON header of a tensor file: made from tensors, and read from bytes that nobody vouches for.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr std::string_view kFormatKey = "lockstep.format";
inline constexpr std::string_view kChecksumKey = "lockstep.sha256";
inline constexpr std::string_view kFormat = "1";

// One tensor of the file.
struct TensorEntry {
  std::string name;
  torch::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // in the data that follows the header
  std::uint64_t end;
};

struct TensorFileHeader {
  std::vector<TensorEntry> entries;  // by begin; together they cover the data without holes
  std::map<std::string, std::string> metadata;
};

// Entries for `tensors` in the order in which their bytes are written: large elements first, so that each is aligned.
std::vector<TensorEntry> lay_out(const std::map<std::string, torch::Tensor>& tensors);

// JSON, padded to a multiple of 8 bytes. Throws CheckpointError (kInvalidArgument, kUnsupported).
std::string format_header(const TensorFileHeader& header);

// Throws CheckpointError (kCorrupt, kUnsupported) whose message starts without the path. `data_bytes`: how many follow.
TensorFileHeader parse_header(std::string_view text, std::uint64_t data_bytes);

// Where in the header's text the digits of the checksum are; nothing when it has none or they are not 64.
std::optional<std::size_t> find_checksum(std::string_view text);

}  // namespace lockstep::checkpoint
