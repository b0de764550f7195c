// Tensor files of state dicts, which should cost no more than those of Python: read without copies, and written with a
// checksum that takes little time. Defined in tensor_file.cpp.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// The tensors of a file in the pages of the file itself, which the system shares with its cache; a tensor that is
// written to gets pages of its own. The file stays mapped as long as one of the tensors lives. It may be replaced
// meanwhile, but not made shorter: then using the tensors is a SIGBUS. Errors of the disk are found here, and so are
// bytes that do not fit a CRC-32.
//
// Nothing for a file with a SHA-256, whose bytes take longer to hash than to copy, and for one that cannot be mapped:
// read_tensor_file() serves these. Throws as that does.
std::optional<TensorFile> map_tensor_file(const std::filesystem::path& path, Checksum wanted = Checksum::kIfPresent);

// As write_tensor_file(), with a CRC-32 in place of the SHA-256.
void write_state_tensor_file(const std::filesystem::path& path, const TensorFile& file);

}  // namespace lockstep::checkpoint
