// Python's distributed checkpoints (torch.distributed.checkpoint, "DCP"), read without Python and by one process. Such
// a checkpoint is a folder: `.metadata` lists the contents, and files such as `__0_0.distcp` hold the ranks' parts.
//
//   const auto run = checkpoint::read_distributed_checkpoint("checkpoint/step-100").toGenericDict();
//   checkpoint::load_state_dict(*net, checkpoint::to_state_dict(run.at("model")));
//
// Files may come from anyone: see torch_file.h.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <filesystem>

namespace lockstep::checkpoint {

// Returns the state dict that Python has saved, as torch.distributed.checkpoint.format_utils.dcp_to_torch_save() does:
// nested as it was, with sharded tensors (DTensor, ShardedTensor, FSDP) put together. Keys of dicts are text, also
// keys that were numbers, because Python saves them as text. Tensors are put on `map_location`.
//
// kNotFound: no such folder, or a file of it is missing. kCorrupt: damaged files; chunks that overlap, or that leave
// out a part of their tensor. kUnsupported: a storage format other than torch.save's, writer extensions, checkpoints
// that every rank has saved for itself (use_collectives=False). An object of a Python class is foreign (torch_file.h).
// Memory is bounded by the files' size. Blocks; not thread-safe for one folder.
c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder, torch::Device map_location = torch::kCPU);

}  // namespace lockstep::checkpoint
