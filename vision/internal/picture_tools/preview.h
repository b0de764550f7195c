// A page that shows samples of a folder after the transforms, with the names of their classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/transforms/compose.h"

namespace lockstep::data {

struct PreviewOptions {
  int samples = 32;
  int cell = 160;  // larger samples are made smaller, so that their longer side has this many pixels
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  // How many epochs each sample is shown in, side by side.
  int epochs = 1;
};

struct PreviewSummary {
  std::int64_t samples = 0;
  std::vector<std::string> left_out = {};  // pictures that cannot be decoded or transformed: "path: reason"
};

// Writes an HTML file that needs no other file. Takes samples from all classes in turn. `transform` must give uint8 (no
// ToTensor). Errors are those of index_image_folder and AtomicFile, and kInvalidArgument for wrong options. After an
// error `file` is as it was before.
Result<PreviewSummary> write_preview(const std::filesystem::path& folder, const std::filesystem::path& file,
                                     const Compose& transform, const PreviewOptions& options);

}  // namespace lockstep::data
