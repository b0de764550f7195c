// Named tensors and text in one file, in the safetensors format, which Python's `safetensors` reads too:
//
//   - 8 bytes: length n of the header, little endian
//   - n bytes: header, JSON, such as
//     `{"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}`
//   - the rest: the tensors' bytes, contiguous in C order, little endian, without holes; offsets count from here
//
// Files written here carry two more pieces of metadata: lockstep.format, the version of what is stored in them (1), and
// lockstep.sha256, the SHA-256 of the whole file, taken with zeros in place of these 64 digits.
//
// Reading is safe for any bytes whatsoever: nothing in a file is executed, and no more memory is taken than the file is
// long (plus what its header needs).
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::checkpoint {

struct TensorFile {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> metadata;  // UTF-8
};

// What to think of a file without lockstep.sha256. A wrong checksum is always an error.
enum class Checksum { kRequired, kIfPresent };

// Replaces `path` in one step: the bytes go to `path`.tmp, are flushed to the disk and renamed. Whatever happens,
// `path` is the old file or the whole new one. Tensors may lie on any device and have any strides; of the dtypes,
// complex128 and the quantized ones are not in the format. Blocks until the disk has it. Throws CheckpointError.
void write_tensor_file(const std::filesystem::path& path, const TensorFile& file);

// CPU tensors with memory of their own. Throws CheckpointError; kCorrupt names the file and what is wrong with it.
TensorFile read_tensor_file(const std::filesystem::path& path, Checksum checksum = Checksum::kRequired);

// The metadata alone, without the tensors and therefore without verifying the checksum.
std::map<std::string, std::string> read_tensor_file_metadata(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
