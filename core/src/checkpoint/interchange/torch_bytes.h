// What read_torch_file() does, for bytes that are a file or a part of one. Defined in torch_file_reader.cpp,
// and in distributed_checkpoint.cpp.
#pragma once

#include <torch/torch.h>

#include <filesystem>

#include "checkpoint/file/file_bytes.h"
#include "checkpoint/python/read_allowance.h"
#include "value_builder.h"

namespace lockstep::checkpoint {

// Throws CheckpointError without a path. `changes` may be null.
c10::IValue read_torch_bytes(const FileBytes& file, torch::Device device, ReadAllowance& allowance,
                             TypeChanges* changes = nullptr);

// read_torch_file() and read_distributed_checkpoint() that note which types have changed. `changes` may be null.
c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location, ReadAllowance& allowance,
                            TypeChanges* changes = nullptr);
c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder, torch::Device map_location,
                                        TypeChanges* changes);

}  // namespace lockstep::checkpoint
