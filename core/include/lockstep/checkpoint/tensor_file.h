// Named tensors and text in one file, in the safetensors format, which Python's `safetensors` reads too:
//
//   - 8 bytes: length n of the header, little endian
//   - n bytes: header, JSON, such as
//     `{"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}`
//   - the rest: the tensors' bytes, contiguous in C order, little endian, without holes. data_offsets count from here
//
// Files written here have two more entries of metadata: lockstep.format, the version of their content (1), and
// lockstep.sha256, the SHA-256 of the whole file, calculated with zeros in place of these 64 digits. Files of
// write_state_dict() have lockstep.crc32 instead, the CRC-32 in 8 digits, calculated in the same way, because a CRC-32
// takes much less time.
//
// Any bytes may be read safely: nothing in a file is executed, and reading takes no more memory than the size of the
// file (plus the parsed header).
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::checkpoint {

struct TensorFile {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> metadata;  // UTF-8
};

// Whether a file without a checksum is an error. A wrong checksum is an error too, unless checksums are ignored. Ignore
// the checksum of a file that Python's safetensors has written with the metadata of an older file: it is the older
// file's checksum.
enum class Checksum { kRequired, kIfPresent, kIgnored };

// Replaces `path` in one step: the bytes go to `path`.tmp, are flushed to the disk and renamed. Whatever happens,
// `path` is the old file or the whole new one. Tensors may be on any device that holds values, and have any strides.
// kUnsupported names a tensor that the format cannot hold: undefined, not dense, quantized or complex128. Blocks until
// the file is on the disk. Throws CheckpointError.
void write_tensor_file(const std::filesystem::path& path, const TensorFile& file);

// Returns CPU tensors with their own memory. Throws CheckpointError; kCorrupt names the file and what is wrong with it.
TensorFile read_tensor_file(const std::filesystem::path& path, Checksum checksum = Checksum::kRequired);

// Reads the metadata only. It does not read the tensors, so it cannot verify the checksum.
std::map<std::string, std::string> read_tensor_file_metadata(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
