// A picture of many pictures: what the transforms make of a folder's samples, with the names of their classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/data/image/image.h"
#include "lockstep/data/transforms/compose.h"

namespace lockstep::data {

struct SheetOptions {
  int samples = 32;
  int columns = 8;
  int cell = 160;  // pixels, the side of each picture's place; larger samples are shown smaller
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  // Shows each sample as it is in so many epochs, side by side, instead of one after another.
  int epochs = 1;
};

struct ContactSheet {
  Image image;
  std::int64_t samples = 0;
  std::vector<std::string> left_out = {};  // pictures that cannot be decoded: "path: reason"
  Status names;                            // why the names of the classes are missing, when they are: no font
};

// Samples from all classes in turn. `transform` must give uint8 (no ToTensor). Errors: those of the folder;
// kInvalidArgument also for a sheet of more than 2^28 pixels.
Result<ContactSheet> contact_sheet(const std::filesystem::path& folder, const Compose& transform,
                                   const SheetOptions& options);

// As a PNG file, complete or not at all.
Status write_png(const Image& image, const std::filesystem::path& path);

}  // namespace lockstep::data
