// Files in the idx format of the MNIST family: a big-endian header (0, 0, type, number of dimensions, each dimension as
// 32 bits) and then the values. Read plain or packed with gzip, whatever the name says.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::data {

// The unsigned bytes of `path` as a CPU tensor of type uint8 with the file's dimensions.
//
// `expected` lists the dimensions that the file must have; -1 fits any. Its length is the number of dimensions.
//
// Throws DataError with path, byte offset, what was expected and what was found: kNotFound, kIo, or kCorrupt for
// anything that is not exactly such a file (damaged gzip, wrong magic or dimensions, missing or additional bytes). No
// more memory is taken than the file's own size can account for, whatever its header claims.
torch::Tensor read_idx(const std::filesystem::path& path, std::span<const std::int64_t> expected);

}  // namespace lockstep::data
