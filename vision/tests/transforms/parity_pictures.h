// Executes the steps of a plan on a picture, to compare with torchvision's result (written by
// tests/parity/pictures.py).
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "transforms/step.h"

namespace lockstep::test {

// Reads height x width x channels bytes, as Python writes them.
struct PackedPicture {
  data::ImageSize size;
  int channels = 3;
  std::vector<std::uint8_t> bytes;
};

inline PackedPicture read_picture(const std::filesystem::path& folder, const nlohmann::json& description) {
  std::ifstream file(folder / description.at("file").get<std::string>(), std::ios::binary);
  return {{description.at("width"), description.at("height")},
          description.at("channels"),
          {std::istreambuf_iterator<char>(file), {}}};
}

inline data::Interpolation filter_from(const nlohmann::json& arguments) {
  const std::map<std::string, data::Interpolation> names{
      {"nearest", data::Interpolation::kNearest}, {"bilinear", data::Interpolation::kBilinear},
      {"bicubic", data::Interpolation::kBicubic}, {"box", data::Interpolation::kBox},
      {"hamming", data::Interpolation::kHamming}, {"lanczos", data::Interpolation::kLanczos}};
  return names.at(arguments.at("filter"));
}

inline int largest_difference(const std::vector<std::uint8_t>& ours, const std::vector<std::uint8_t>& theirs) {
  int largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) largest = std::max(largest, std::abs(ours[i] - theirs[i]));
  return largest;
}

inline double mean_difference(const std::vector<std::uint8_t>& ours, const std::vector<std::uint8_t>& theirs) {
  double sum = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i) sum += std::abs(ours[i] - theirs[i]);
  return sum / static_cast<double>(ours.size());
}

// An exact plan without Compose, so that a test gives the parameters instead of drawing them.
class StepsAlone {
 public:
  explicit StepsAlone(const PackedPicture& picture)
      : picture_(data::image_from_packed(picture.bytes, picture.size, picture.channels)) {
    plan_.precision = data::Precision::kExact;
    plan_.picture = plan_.size = picture.size;
    plan_.finish = &finish_;
    if (picture.channels == 1) data::add_step(plan_, data::GreyStep{1});
  }
  StepsAlone(const StepsAlone&) = delete;
  StepsAlone& operator=(const StepsAlone&) = delete;

  data::Plan& plan() { return plan_; }

  // Height x width x channels bytes; crops below one another.
  std::vector<std::uint8_t> pixels() const {
    const data::SampleShape shape = plan_.shape();
    std::vector<std::uint8_t> planes(shape.bytes());
    data::run_plan(plan_, picture_, /*skip_crop=*/false, planes.data());
    const auto channels = static_cast<std::size_t>(shape.channels);
    const std::size_t plane = static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.height);
    std::vector<std::uint8_t> bytes(planes.size());
    for (std::size_t i = 0; i < planes.size(); ++i) {
      const std::size_t crop = i / (plane * channels);
      bytes[crop * plane * channels + i % plane * channels + i / plane % channels] = planes[i];
    }
    return bytes;
  }

 private:
  const data::Image picture_;
  const data::Finish finish_;
  data::Plan plan_;
};

}  // namespace lockstep::test
