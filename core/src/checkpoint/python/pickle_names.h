// Names of Python in files: those of dtypes, and those that a pickle may use, and nothing else: what
// torch.load(weights_only=True) allows and what has a meaning without Python, and bytes, which has no arguments here.
// Finding a name here runs no code; it says how the reader understands the name.
#pragma once

#include <torch/torch.h>

#include <string_view>

namespace lockstep::checkpoint {

// What Python calls a dtype, and the storage that torch.save writes it with.
struct DtypeNames {
  torch::ScalarType dtype;
  std::string_view name;
  std::string_view storage;  // "FloatStorage"; empty for newer dtypes, which have none of their own
};

// nullptr for a dtype that files cannot hold (quantized ones).
const DtypeNames* find_dtype(std::string_view name);
const DtypeNames* find_dtype(torch::ScalarType dtype);

enum class PickleRole {
  kMapping,             // collections.OrderedDict, Counter: a dict
  kSize,                // torch.Size(tuple): a tuple
  kDevice,              // torch.device(text)
  kComplex,             // complex(real, imaginary)
  kSet,                 // set(list): a list
  kEncoded,             // _codecs.encode(text, "latin1"): bytes
  kNoBytes,             // bytes(): how protocol 2 writes b""
  kTensor,              // torch._utils._rebuild_tensor and _v2
  kTensorWithDtype,     // torch._utils._rebuild_tensor_v3
  kParameter,           // torch._utils._rebuild_parameter
  kParameterWithState,  // torch._utils._rebuild_parameter_with_state
  kSubclass,            // torch._tensor._rebuild_from_type_v2: attributes are dropped
  kClass,               // torch.Tensor, Parameter: what kSubclass may make
  kStorage,             // torch.FloatStorage and so on; `dtype` says of what
  kDtype,               // torch.float32 and so on
};

struct PickleName {
  std::string_view module;
  std::string_view name;
  PickleRole role;
  std::string_view dtype;  // of kStorage and kDtype; "" for a storage of bytes
};

// nullptr for every other name.
const PickleName* find_pickle_name(std::string_view module, std::string_view name);

}  // namespace lockstep::checkpoint
