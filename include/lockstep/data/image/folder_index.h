// The index of a folder with a subfolder of pictures for each class, as torchvision's ImageFolder makes it. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::data {

struct FolderIndex {
  struct Sample {
    std::string path;
    std::int64_t label = 0;
  };
  std::vector<std::string> classes;  // sorted by bytes; the label of a class is its index here
  std::map<std::string, std::int64_t> class_to_idx;
  std::vector<Sample> samples;        // sorted by class, then folder, then name: torchvision's order
  std::vector<std::string> left_out;  // paths of TIFF files, with ignore_unsupported
};

struct FolderIndexOptions {
  // Classes without pictures are an error unless allowed.
  bool allow_empty = false;
  // torchvision takes .tif and .tiff too, which cannot be decoded here. False: they are an error that names them. True:
  // they are left out.
  bool ignore_unsupported = false;
};

// Finds files whose names end in .jpg, .jpeg, .png, .bmp, .webp, .ppm or .pgm, in upper or lower case, and ignores
// others. It also searches the subfolders of classes, and follows links, except to a folder that contains them. It
// opens no file: as in torchvision, broken links, FIFOs and devices with such a name are samples too, and loading them
// is an error. Folders that are removed meanwhile are left out.
//
// Errors: kNotFound (no such folder, no class folder, a class without pictures), kUnsupported (TIFF files),
// kPermission, kIo. Blocks.
Result<FolderIndex> index_image_folder(const std::filesystem::path& root, const FolderIndexOptions& options = {});

}  // namespace lockstep::data
