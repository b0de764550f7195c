// Files of Python's torch.save: read without Python, and written so that torch.load(path, weights_only=True) reads
// them.
//
// A file's value is LibTorch's own type for Python's values, c10::IValue:
//
//   - dict, OrderedDict and Counter are a GenericDict in the same order. Keys are text or numbers;
//     a dict with other keys, such as bytes, is foreign
//   - list and set are a list; tuple and torch.Size are a Tuple
//   - Tensor and Parameter are a Tensor. Attributes of a Parameter are dropped
//   - int is an Int of 64 bits, from 2^63 on a UInt; float, complex, bool, str and None keep their type
//   - bytes are a String, torch.float32 is the String "float32", torch.device is a Device
//   - every other Python object is foreign: a capsule that holds the name of its class alone. Functions of this layer
//     refuse a foreign object (kUnsupported); the error has its name and place
//
// Files may come from anyone: nothing in them is executed. The reader knows the names in
// core/src/checkpoint/python/pickle_names.h, and keeps every other object as a name. Memory and depth are bounded: a
// file that asks for far more than it holds is an error (docs/interchange.md has the numbers).
//
// Functions throw CheckpointError, whose text names the file. Not thread-safe for one path; they block until they are
// done.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <filesystem>

namespace lockstep::checkpoint {

// Reads a file of torch.save, in the zip format (since PyTorch 1.6) or in the format before it. Tensors that share
// memory in Python share it here too, with the same strides. All tensors are put on `map_location`, whatever device
// they were saved from. kUnsupported for TorchScript, and for a file that holds nothing but an object of a Python
// class. kCorrupt says what is wrong with the bytes, and where.
c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location = torch::kCPU);

// Writes a value of these kinds; other lists and dicts of LibTorch (of int, of Tensor) count as lists and dicts. Memory
// that several tensors share is written once. If a view is the only tensor on its memory, the rest of this memory is
// not written. An expanded tensor, which has more elements than its memory, is written with its memory and its strides.
// Python gets CPU tensors with their requires_grad, without gradients. Replaces `path` in one step, as
// write_tensor_file() does. kUnsupported names a value that cannot be written, such as a foreign object, and its place.
void write_torch_file(const std::filesystem::path& path, const c10::IValue& value);

}  // namespace lockstep::checkpoint
