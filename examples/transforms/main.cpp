// Augments one picture, without LibTorch in the code: writes versions of it as PPM files, and shows the sample that a
// network would be given.
//
//   ./augment_picture PICTURE FOLDER [COUNT]
#include <lockstep/data/errors.h>
#include <lockstep/image/decode.h>
#include <lockstep/transforms/compose.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

using namespace lockstep::data;

// Transforms without ToTensor give bytes: a plane of red, one of green, one of blue.
void write_ppm(const std::filesystem::path& path, const SampleShape& shape, const std::vector<std::uint8_t>& planes) {
  std::ofstream file(path, std::ios::binary);
  file << "P6\n" << shape.width << " " << shape.height << "\n255\n";
  const std::size_t pixels = planes.size() / 3;
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < 3; ++c) file.put(static_cast<char>(planes[c * pixels + i]));
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path.native());
}

void write_versions(const Image& picture, const std::filesystem::path& folder, int count) {
  const Compose augment({RandomResizedCrop{160}, RandomHorizontalFlip{},
                         RandomApply{{RandomChoice{{RandomRotation{20}, ColorJitter{.hue = 0.2}}}}, 0.5},
                         RandomOrder{{RandomPosterize{4, 0.3}, RandomSolarize{160, 0.2}, RandomAdjustSharpness{3.0}}}});
  for (int i = 0; i < count; ++i) {
    // The key decides everything: the same seed, epoch and index always give this version.
    const SamplePlan plan = augment.draw(picture.size(), {.seed = 1, .epoch = 0, .index = i});
    const SampleShape shape = Compose::shape_of(plan);
    std::vector<std::uint8_t> planes(shape.bytes());
    augment.apply(plan, picture, planes.data());
    write_ppm(folder / ("version-" + std::to_string(i) + ".ppm"), shape, planes);
  }
}

// The numbers that a network would be given.
void show_sample(const Image& picture) {
  const Compose evaluate({Resize{128}, CenterCrop{112}, ToTensor{}, Normalize{{0.5}, {0.5}}});
  const SamplePlan plan = evaluate.draw(picture.size(), {});
  const SampleShape shape = Compose::shape_of(plan);
  std::vector<float> sample(shape.bytes() / sizeof(float));
  evaluate.apply(plan, picture, sample.data());
  const double sum = std::accumulate(sample.begin(), sample.end(), 0.0);
  std::printf("sample: [%d, %d, %d], mean %.3f\n", shape.channels, shape.height, shape.width,
              sum / static_cast<double>(sample.size()));
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PICTURE FOLDER [COUNT]; writes COUNT (8) versions of the picture\n", argv[0]);
    return 2;
  }
  try {
    const auto picture = decode_image(std::filesystem::path(argv[1]));
    if (!picture.ok()) throw DataError(picture.status().code(), picture.status().message());
    std::filesystem::create_directories(argv[2]);
    write_versions(picture.value(), argv[2], argc > 3 ? std::stoi(argv[3]) : 8);
    show_sample(picture.value());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "augment_picture: %s\n", error.what());
    return 1;
  }
}
