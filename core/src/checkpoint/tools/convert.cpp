#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "any_file.h"
#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/python/pickle_names.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

bool changes_tensors(const ConvertOptions& options) {
  return !options.dtype.empty() || !options.strip_prefix.empty() || !options.add_prefix.empty();
}

// The state dict with other dtypes and names.
StateDict changed(StateDict state, const ConvertOptions& options) {
  ValueBudget budget;
  for (const auto& entry : state) budget.add(*entry);
  if (!options.strip_prefix.empty()) {
    state = strip_prefix(state, options.strip_prefix);
    if (state.is_empty()) {
      throw CheckpointError(ErrorCode::kMismatch,
                            fmt::format("no name begins with \"{}\"", printable(options.strip_prefix)));
    }
  }
  if (!options.add_prefix.empty()) state = add_prefix(state, options.add_prefix);
  if (!options.dtype.empty()) state = to(state, find_dtype(options.dtype)->dtype);
  return state;
}

}  // namespace

std::string wrong_options(const fs::path& to, const ConvertOptions& options) {
  if (to.extension() == ".ckpt") {
    return "a .ckpt is a checkpoint of Lockstep, which a program writes: load the file in C++ and save a Checkpoint";
  }
  const DtypeNames* dtype = options.dtype.empty() ? nullptr : find_dtype(options.dtype);
  if (options.dtype.empty() || (dtype != nullptr && c10::isFloatingType(dtype->dtype))) return {};
  return fmt::format("--dtype: expected a type of floating point such as float32, float16 or bfloat16, found \"{}\"",
                     printable(options.dtype));
}

Lines convert(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  if (const std::string why = wrong_options(to, options); !why.empty())
    throw CheckpointError(ErrorCode::kInvalidArgument, why);
  const AnyFile file =
      read_any_file(from, options.entry, options.ignore_checksum ? Checksum::kIgnored : Checksum::kIfPresent);
  if (to.extension() != ".safetensors" && !changes_tensors(options)) {
    write_torch_file(to, file.value);
    Lines lines = file.changed;
    if (file.untyped.empty()) return lines;
    lines.push_back(fmt::format("as text, because an older version of Lockstep has saved them without their types: {}",
                                fmt::join(file.untyped, ", ")));
    return lines;
  }
  const StateDict state = in_context(file.path.native(), [&] { return changed(to_state_dict(file.value), options); });
  write_state_dict(to, state);
  return {};
}

}  // namespace lockstep::checkpoint
