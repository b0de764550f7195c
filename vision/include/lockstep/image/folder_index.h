// The index of a folder with a subfolder of pictures for each class, as torchvision's ImageFolder makes it. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
  std::vector<std::string> classes;  // sorted as Python sorts them; the label of a class is its index here
  std::map<std::string, std::int64_t> class_to_idx;
  std::vector<Sample> samples;  // sorted by class, then folder, then name: torchvision's order
};

struct FolderIndexOptions {
  // Classes without pictures are an error unless allowed.
  bool allow_empty = false;
  // The endings of the names of samples, with the dot, in lower case. Empty: the endings of pictures, see below.
  std::vector<std::string> extensions = {};
  // Decides for each path whether it is a sample, whatever its ending. Excludes `extensions`. index_image_folder passes
  // its exceptions on.
  std::function<bool(const std::string& path)> is_valid_file = {};
};

// Finds files whose names end in .jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or .webp, in upper or lower case (or
// in an ending that the options name), and ignores other files. Also searches the subfolders of classes, and follows
// links, except a link to a folder that contains it. Opens no file: as in torchvision, broken links, FIFOs and devices
// with such a name are samples too, and loading them is an error. Folders that are removed meanwhile are left out.
//
// Errors: kNotFound (no such folder, no class folder, a class without pictures), kInvalidArgument, kPermission, kIo.
// Blocks.
Result<FolderIndex> index_image_folder(const std::filesystem::path& root, const FolderIndexOptions& options = {});

// The paths of all pictures (files with one of the endings above) in a folder and the folders in it, sorted by folder,
// then by name. Errors: kNotFound (no such folder), kPermission, kIo. Blocks.
Result<std::vector<std::string>> list_pictures(const std::filesystem::path& root);

}  // namespace lockstep::data
