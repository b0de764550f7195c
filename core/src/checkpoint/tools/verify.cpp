#include <fmt/format.h>

#include <string>
#include <vector>

#include "any_file.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/tools/tools.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// Counts the tensors of a value.
class Verifier {
 public:
  void look_at(const c10::IValue& value) {
    if (value.isTensor()) {
      ++tensors;
    } else if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) look_at(entry.value());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) look_at(item);
    } else if (value.isTuple()) {
      for (const c10::IValue& item : value.toTupleRef().elements()) look_at(item);
    } else if (foreign_text(value) != nullptr) {
      ++foreign;
    }
  }

  std::int64_t tensors = 0;
  std::int64_t foreign = 0;  // objects of Python that are not read
};

void verify_one(const fs::path& path, Verified& all) {
  try {
    const AnyFile file = read_any_file(path);
    Verifier verifier;
    verifier.look_at(file.value);
    const std::string foreign =
        verifier.foreign == 0 ? "" : fmt::format(", {} objects of Python that are not read", verifier.foreign);
    all.lines.push_back(fmt::format("{}: good: {}, {} tensors{}; compared: {}", path.native(), file.format,
                                    verifier.tensors, foreign, file.checked));
  } catch (const CheckpointError& error) {
    all.good = false;
    all.lines.emplace_back(error.what());
  }
}

}  // namespace

Verified verify(const fs::path& path) {
  Verified all;
  std::vector<fs::path> files = in_context(path.native(), [&] { return checkpoints_in(path); });
  if (files.empty()) files.push_back(path);
  for (const fs::path& file : files) verify_one(file, all);
  return all;
}

}  // namespace lockstep::checkpoint
