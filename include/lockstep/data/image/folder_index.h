// What lies in a folder with a subfolder of pictures for each class, as torchvision's ImageFolder sees it. Torch-free.
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
  std::vector<std::string> classes;  // sorted by bytes; the label of a class is its place
  std::map<std::string, std::int64_t> class_to_idx;
  std::vector<Sample> samples;        // by class, then by folder and name: torchvision's order
  std::vector<std::string> left_out;  // paths of TIFF files, with ignore_unsupported
};

struct FolderIndexOptions {
  // Classes without pictures are an error unless allowed.
  bool allow_empty = false;
  // torchvision takes .tif and .tiff too, which cannot be decoded here: an error that names them, or left out.
  bool ignore_unsupported = false;
};

// Files count when their names end in .jpg, .jpeg, .png, .bmp, .webp, .ppm or .pgm, in any case; others are ignored.
// Subfolders of classes are searched too; links are followed, except back to a folder that contains them. No file is
// opened or looked at, but for links. Folders that vanish meanwhile are left out.
//
// kNotFound (no such folder, no class folder, a class without pictures), kUnsupported, kPermission, kIo. Blocks.
Result<FolderIndex> index_image_folder(const std::filesystem::path& root, const FolderIndexOptions& options = {});

}  // namespace lockstep::data
