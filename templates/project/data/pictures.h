// The data: folders of pictures, with the transforms of config.yaml. A dataset of your own is a class with size() and
// get(index): see lockstep/data/dataset.h.
#pragma once

#include <lockstep/datasets/image_folder.h>
#include <lockstep/transforms/parse.h>

#include <string>
#include <vector>

inline lockstep::data::ImageFolder open_pictures(const std::string& folder, const std::vector<std::string>& transforms,
                                                 lockstep::data::OnCorrupt on_corrupt) {
  return lockstep::data::ImageFolder(
      folder, lockstep::data::Compose(lockstep::data::value_or_throw(lockstep::data::parse_transforms(transforms))),
      {.image = {.on_corrupt = on_corrupt}});
}
