// What read_torch_file() does, for bytes that are a file or a part of one. Defined in torch_file_reader.cpp.
#pragma once

#include <torch/torch.h>

#include "checkpoint/python/file_bytes.h"

namespace lockstep::checkpoint {

// Throws CheckpointError without a path.
c10::IValue read_torch_bytes(const FileBytes& file, torch::Device device);

}  // namespace lockstep::checkpoint
