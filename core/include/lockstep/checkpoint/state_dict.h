// State dicts: what Python's model.state_dict() and optimizer.state_dict() return. The functions here take them from
// LibTorch's modules and optimizers, load them, and read and write their files.
//
//   auto missing = checkpoint::load_state_dict(*net, checkpoint::read_state_dict("resnet18.pt"));
//   checkpoint::write_state_dict("trained.safetensors", checkpoint::state_dict(*net));
//
// Functions throw CheckpointError. A load that throws has changed nothing. Not thread-safe for one model, optimizer or
// path.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// Tensors by name, in the model's order.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

// Returns the model's parameters and buffers, without the prefixes "module." and "_orig_mod." that wrappers put in
// front of all names. The tensors are the model's own: clone them to keep their values.
StateDict state_dict(const torch::nn::Module& model);

// The tensors that load_state_dict() has not loaded.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // in the model, not in the state dict: these tensors keep their values
  std::vector<std::string> unexpected_keys;  // in the state dict, not in the model
  // In both, but with different shapes, or with complex numbers for a real tensor: these tensors keep their values too.
  // Each entry is a text, such as "fc.weight is [1000, 512] in the file and [10, 512] in the model".
  std::vector<std::string> mismatched;

  bool empty() const { return missing_keys.empty() && unexpected_keys.empty() && mismatched.empty(); }
};

// Copies the values to the model's tensors, converted to the tensors' dtypes and devices. Prefixes of wrappers do not
// matter, on either side. If num_batches_tracked of a normalization layer is missing, the layer keeps its value, as in
// Python, because files before PyTorch 0.4.1 lack it.
// `strict` true: if anything does not fit, throws kMismatch with a list of everything that does not fit. False: returns
// this list and loads the rest; kMismatch if nothing fits. (Python refuses other shapes even if it is not strict.)
// kInvalidArgument lists tensors of the model that cannot be overwritten (expanded, sparse, meta, inference).
IncompatibleKeys load_state_dict(torch::nn::Module& model, const StateDict& state, bool strict = true);

// Returns the same dict with `prefix` in front of each name: "module." for a model that Python has wrapped.
StateDict add_prefix(const StateDict& state, std::string_view prefix);
// Returns the entries whose names begin with `prefix`, and removes the prefix: a part of a larger model.
StateDict strip_prefix(const StateDict& state, std::string_view prefix);
// Returns the same dict with its floating-point tensors converted to `dtype`, as module.to(dtype) does. Other tensors
// stay what they are.
StateDict to(const StateDict& state, torch::ScalarType dtype);

// Reads a state dict that anyone has written: a safetensors file, or a file of torch.save that holds a dict of tensors
// (a Module's state_dict(), not the Module). If the file holds a dict of such dicts, as {"epoch": 3, "model": {...}},
// `entry` is the key ("model"). kMismatch if the file holds something else; the error's text lists the keys.
//
// A safetensors file is not copied. Its tensors on the CPU lie in the mapped pages of the file, as in Python, and get
// pages of their own when they are written to. While the tensors live, the file may be replaced by another file, but
// must not be made shorter or written over in place. load_state_dict() copies the values. (Files with a SHA-256, such
// as checkpoints, are copied.)
//
// `path` may also be an index of several files, such as model.safetensors.index.json of Hugging Face's libraries, or a
// folder with such an index. The files that the index names are read as one state dict.
//
// `checksum` concerns safetensors files: kIgnored reads a file whose metadata have an older file's checksum
// (tensor_file.h).
StateDict read_state_dict(const std::filesystem::path& path, torch::Device map_location = torch::kCPU,
                          std::string_view entry = "", Checksum checksum = Checksum::kIfPresent);
// Replaces `path` in one step by a safetensors file if its name ends in ".safetensors", and otherwise by a file that
// Python's torch.load(path, weights_only=True) reads. Both have a CRC-32, which read_state_dict() compares.
void write_state_dict(const std::filesystem::path& path, const StateDict& state);

// Convert between state dicts and the values of read_torch_file(). kMismatch for anything but a dict from text to
// tensors. An entry `_extra_state`, which some modules of Python have, is left out if it is no tensor;
// load_state_dict() ignores it if it is a tensor.
StateDict to_state_dict(const c10::IValue& value);
c10::IValue to_ivalue(const StateDict& state);

// Returns what Python's optimizer.state_dict() returns for an optimizer of the same kind (SGD, Adam, AdamW, RMSprop,
// Adagrad) with the same parameters in the same order. Python loads the result with optimizer.load_state_dict().
// Options that LibTorch lacks (maximize, foreach, ...) get Python's defaults. The tensors are the optimizer's own.
c10::IValue state_dict(const torch::optim::Optimizer& optimizer);

// Loads what Python's optimizer.state_dict() returned: the options of each group, with the learning rate, and each
// parameter's state. Python numbers the parameters in the order in which the optimizer was given them. If that was
// model.parameters(), the order is the same on both sides, provided that the layers were registered in the same order.
// kMismatch for another kind of optimizer, other groups or other shapes; kUnsupported for maximize=True; kCorrupt for
// state that lacks a field or holds an impossible number.
void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state);

}  // namespace lockstep::checkpoint
