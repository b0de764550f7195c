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

// Counts the tensors of a value, and names those with values that are not finite.
class Verifier {
 public:
  explicit Verifier(bool finite) : finite_(finite) {}

  void look_at(const std::string& place, const c10::IValue& value) {
    if (value.isTensor()) {
      ++tensors;
      if (finite_) budget_.add(without_repeats(value.toTensor()));
      const std::int64_t bad = finite_ ? not_finite(value.toTensor()) : 0;
      if (bad > 0 && lines.size() < kMostLines)
        lines.push_back(fmt::format("{}: {} values are not finite", place, bad));
    } else if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) {
        const std::string key = entry.key().isString() ? fmt::format("\"{}\"", shown_text(entry.key().toStringRef()))
                                : entry.key().isInt()  ? std::to_string(entry.key().toInt())
                                                       : "...";
        look_at(fmt::format("{}[{}]", place, key), entry.value());
      }
    } else if (value.isList()) {
      items(place, value.toListRef());
    } else if (value.isTuple()) {
      items(place, value.toTupleRef().elements());
    } else if (foreign_text(value) != nullptr) {
      ++foreign;
    }
  }

  std::int64_t tensors = 0;
  std::int64_t foreign = 0;  // objects of Python that are not read
  Lines lines;

 private:
  template <typename Items>
  void items(const std::string& place, const Items& values) {
    std::size_t index = 0;
    for (const c10::IValue& value : values) look_at(fmt::format("{}[{}]", place, index++), value);
  }

  bool finite_;
  ValueBudget budget_;
};

void verify_one(const fs::path& path, const VerifyOptions& options, Verified& all) {
  try {
    const AnyFile file = read_any_file(path);
    Verifier verifier(options.finite);
    in_context(path.native(), [&] { verifier.look_at(path.native() + ": ", file.value); });
    if (verifier.lines.empty()) {
      const std::string foreign =
          verifier.foreign == 0 ? "" : fmt::format(", {} objects of Python that are not read", verifier.foreign);
      verifier.lines.push_back(fmt::format("{}: good: {}, {} tensors{}; compared: {}", path.native(), file.format,
                                           verifier.tensors, foreign, file.checked));
    } else {
      all.good = false;
    }
    all.lines.insert(all.lines.end(), verifier.lines.begin(), verifier.lines.end());
  } catch (const CheckpointError& error) {
    all.good = false;
    all.lines.emplace_back(error.what());
  }
}

}  // namespace

Verified verify(const fs::path& path, const VerifyOptions& options) {
  Verified all;
  std::vector<fs::path> files = in_context(path.native(), [&] { return checkpoints_in(path); });
  if (files.empty()) files.push_back(path);
  for (const fs::path& file : files) verify_one(file, options, all);
  return all;
}

}  // namespace lockstep::checkpoint
