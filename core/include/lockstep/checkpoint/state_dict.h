// State dicts: what Python's model.state_dict() and optimizer.state_dict() return, from and to LibTorch's modules and
// optimizers, and their files.
//
//   auto missing = checkpoint::load_state_dict(*net, checkpoint::read_state_dict("resnet18.pt"));
//   checkpoint::write_state_dict("trained.safetensors", checkpoint::state_dict(*net));
//
// Functions throw CheckpointError. A load that throws has changed nothing. Not thread-safe for one model, optimizer or
// path.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// Tensors by name, in the model's order.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

// Parameters and buffers, without the prefixes "module." and "_orig_mod." that wrappers put in front of all names. The
// tensors are the model's own: clone them to keep their values.
StateDict state_dict(const torch::nn::Module& model);

// What load_state_dict() has left out.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // of the model, not in the state dict: they keep their values
  std::vector<std::string> unexpected_keys;  // in the state dict, not in the model
  // In both, but with different shapes, or complex numbers for a real tensor: they keep their values. Each says which,
  // such as "fc.weight is [1000, 512] in the file and [10, 512] in the model".
  std::vector<std::string> mismatched;

  bool empty() const { return missing_keys.empty() && unexpected_keys.empty() && mismatched.empty(); }
};

// Copies the values to the model's tensors, converted to their dtypes and devices. Prefixes of wrappers do not matter,
// on either side. A missing num_batches_tracked of a normalization layer keeps its value, as in Python: files before
// PyTorch 0.4.1 lack it.
// strict: whatever does not fit is an error (kMismatch) that lists it all. Otherwise it is returned, and the rest is
// loaded; kMismatch when nothing fits. (Python refuses other shapes also when it is not strict.)
// kInvalidArgument lists tensors of the model that cannot be overwritten (expanded, sparse, meta, inference).
IncompatibleKeys load_state_dict(torch::nn::Module& model, const StateDict& state, bool strict = true);

// The same dict with `prefix` in front of each name: "module." for a model that Python has wrapped.
StateDict add_prefix(const StateDict& state, std::string_view prefix);
// The entries whose names begin with `prefix`, without it: the part of a larger model.
StateDict strip_prefix(const StateDict& state, std::string_view prefix);
// The same dict with its floating-point tensors converted, as module.to(dtype) does. Others stay what they are.
StateDict to(const StateDict& state, torch::ScalarType dtype);

// Reads a state dict of anyone: a safetensors file, a file of torch.save that holds a dict of tensors (of a Module's
// state_dict(), not the Module), or the folder of a distributed checkpoint (distributed_checkpoint.h). When the file
// holds a dict of such dicts, as {"epoch": 3, "model": {...}}, `entry` is the key. kMismatch when the file holds
// something else; its text lists the keys.
//
// A safetensors file, those of others too, is not copied: tensors on the CPU are in the pages of the file, as in
// Python, and get their own when they are written to. The file may be replaced by another while they live, but not be
// made shorter or written over in place. load_state_dict() copies the values. (Files with a SHA-256, such as
// checkpoints, are copied.)
//
// A folder with an index, such as model.safetensors.index.json of Hugging Face's libraries, or that index, is read as
// one state dict: the files that it names.
//
// `checksum` is about safetensors files: kIgnored reads one whose metadata have a former file's (tensor_file.h).
StateDict read_state_dict(const std::filesystem::path& path, torch::Device map_location = torch::kCPU,
                          std::string_view entry = "", Checksum checksum = Checksum::kIfPresent);
// Replaces `path` in one step by a safetensors file if its name ends in ".safetensors", and otherwise by a file that
// Python's torch.load(path, weights_only=True) reads. Both have a CRC-32, which read_state_dict() compares.
void write_state_dict(const std::filesystem::path& path, const StateDict& state);

// From and to the values of read_torch_file(). kMismatch for anything but a dict from text to tensors. An entry
// `_extra_state` of a module of Python that is no tensor is left out; load_state_dict() ignores one that is.
StateDict to_state_dict(const c10::IValue& value);
c10::IValue to_ivalue(const StateDict& state);

// What Python's optimizer.state_dict() returns for an optimizer of the same kind with the same parameters in the same
// order: SGD, Adam, AdamW, RMSprop, Adagrad. Python loads it with optimizer.load_state_dict(). Options that LibTorch
// lacks (maximize, foreach, ...) get Python's defaults. Tensors are the optimizer's own.
c10::IValue state_dict(const torch::optim::Optimizer& optimizer);

// Loads what Python's optimizer.state_dict() returned: options of each group (learning rate too) and each parameter's
// state. Python numbers parameters in the order in which it was given them, which is that of model.parameters() on both
// sides when the layers are registered in the same order. kMismatch for another kind of optimizer, other groups or
// shapes; kUnsupported for maximize=True; kCorrupt for state that lacks a field or holds an impossible number.
void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state);

// What Python's scheduler.state_dict() has for LibTorch's schedulers: how far they have come, and for StepLR its
// arguments. The next step() is then that which the other side would have made. Python keeps its own arguments where
// the dict has none. The rates belong to the optimizer: load its state too, after the scheduler was made.
// load_state_dict throws kMismatch for other arguments, kCorrupt for impossible numbers. Other classes than StepLR must
// depend on their step count alone.
c10::IValue state_dict(const torch::optim::LRScheduler& scheduler);
void load_state_dict(torch::optim::LRScheduler& scheduler, const c10::IValue& state);
c10::IValue state_dict(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
void load_state_dict(torch::optim::ReduceLROnPlateauScheduler& scheduler, const c10::IValue& state);

}  // namespace lockstep::checkpoint
