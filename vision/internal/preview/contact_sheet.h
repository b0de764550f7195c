// A contact sheet: one picture that shows samples of a folder after the transforms, with the names of their classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"
#include "lockstep/transforms/compose.h"

namespace lockstep::data {

struct SheetOptions {
  int samples = 32;
  int columns = 8;
  int cell = 160;  // side of the square for each sample, in pixels; larger samples are made smaller
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  // How many epochs each sample is shown in, side by side.
  int epochs = 1;
};

struct ContactSheet {
  Image image;
  std::int64_t samples = 0;
  std::vector<std::string> left_out = {};  // pictures that cannot be decoded or transformed: "path: reason"
  Status names;                            // an error when no font is found; the sheet then has no names
};

// Takes samples from all classes in turn. `transform` must give uint8 (no ToTensor). Errors are those of
// index_image_folder, and kInvalidArgument for wrong options or a sheet of more than 2^28 pixels.
Result<ContactSheet> contact_sheet(const std::filesystem::path& folder, const Compose& transform,
                                   const SheetOptions& options);

// Writes a PNG file. After an error `path` is as it was before.
Status write_png(const Image& image, const std::filesystem::path& path);

}  // namespace lockstep::data
