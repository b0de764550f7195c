// Python's optimizer.state_dict(), from and to the entries of optimizer_state.h, which has all rules about options and
// state.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// The dict for the optimizer in `file`. Throws CheckpointError (kMismatch when there is none, kCorrupt).
c10::IValue python_optimizer(const TensorFile& file);

// What Python's scheduler.load_state_dict() takes for the scheduler in `file`, whatever its type. Defined in
// scheduler_state.cpp.
c10::IValue python_scheduler(const TensorFile& file);

// What add_python_optimizer() says about what it cannot keep.
struct PythonLines {
  std::string place;  // of the dict, for the lines
  std::vector<std::string> lines = {};
  std::size_t text = 0;  // bytes that have been noted
};

// Adds the optimizer of a dict to `file`. `kind` is "SGD", "Adam", "AdamW", "RMSprop" or "Adagrad"; when it is empty,
// the options tell. With `lines`, options and entries that Python alone has are noted for python_optimizer(), as
// optimizer.python.group.N and optimizer.python.param.N in the metadata. Throws CheckpointError (kMismatch, kCorrupt,
// kUnsupported).
void add_python_optimizer(TensorFile& file, const c10::IValue& state, std::string_view kind = "",
                          PythonLines* lines = nullptr);

}  // namespace lockstep::checkpoint
