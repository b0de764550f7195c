// Files in the idx format of the MNIST family: a big-endian header (0, 0, type, number of dimensions, each dimension in
// 32 bits), then the values. Files may be plain or packed with gzip; their first bytes decide, not the name.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::data {

// Returns the unsigned bytes of `path` as a uint8 CPU tensor with the file's dimensions.
//
// `expected` lists the dimensions that the file must have; -1 accepts any length.
//
// Throws DataError with path, byte offset, what was expected and what was found: kNotFound, kPermission, kIo, or
// kCorrupt (damaged gzip, wrong magic number or dimensions, missing or additional bytes). The size of the file limits
// the memory, not its header.
torch::Tensor read_idx(const std::filesystem::path& path, std::span<const std::int64_t> expected);

}  // namespace lockstep::data
