// Tensor files without copies.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// The tensors of a file in the pages of the file itself, which the system shares with its cache; a tensor that is
// written to gets pages of its own. The file stays mapped as long as one of the tensors lives. It may be replaced
// meanwhile, but not made shorter: then using the tensors is a SIGBUS. Errors of the disk are found here.
//
// Nothing for a file with a checksum, which has to be read anyway, and for one that cannot be mapped:
// read_tensor_file() serves these. Throws as that does.
std::optional<TensorFile> map_tensor_file(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
