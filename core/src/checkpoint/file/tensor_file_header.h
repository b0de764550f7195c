// The JSON header of a tensor file: made from tensors, and read from untrusted bytes.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr std::string_view kFormatKey = "lockstep.format";
inline constexpr std::string_view kFormat = "1";

// One tensor of the file.
struct TensorEntry {
  std::string name;
  torch::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // offset in the data that follows the header
  std::uint64_t end;
};

struct TensorFileHeader {
  std::vector<TensorEntry> entries;  // sorted by `begin`; together they cover the data without gaps
  std::map<std::string, std::string> metadata;
};

// Entries for `tensors` in the order in which their bytes are written: large element types first, for alignment.
// Throws CheckpointError (kUnsupported) for a tensor that is not dense or has no values.
std::vector<TensorEntry> lay_out(const std::map<std::string, torch::Tensor>& tensors);

// Returns JSON, padded to a multiple of 8 bytes. Throws CheckpointError (kInvalidArgument, kUnsupported).
std::string format_header(const TensorFileHeader& header);

// `data_bytes`: the bytes that follow the header. Throws CheckpointError (kCorrupt, kUnsupported) without the path.
TensorFileHeader parse_header(std::string_view text, std::uint64_t data_bytes);

}  // namespace lockstep::checkpoint
