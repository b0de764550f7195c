// Transforms of pictures in memory, on one thread: pictures per second of each pipeline of bench/peers/transforms.py,
// from 8-bit pixels to normalised float samples in the memory of a batch.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/image/decode.h"
#include "lockstep/transforms/compose.h"

namespace {

using namespace lockstep::data;  // NOLINT(google-build-using-namespace): a program
using Clock = std::chrono::steady_clock;

const std::vector<std::pair<std::string, std::vector<Transform>>>& pipelines() {
  static const std::vector<std::pair<std::string, std::vector<Transform>>> all{
      {"invert", {RandomInvert{1.0}}},
      {"posterize", {RandomPosterize{4, 1.0}}},
      {"solarize", {RandomSolarize{128, 1.0}}},
      {"sharpness", {RandomAdjustSharpness{2.0, 1.0}}},
      {"autocontrast", {RandomAutocontrast{1.0}}},
      {"equalize", {RandomEqualize{1.0}}},
      {"trivial-augment", {TrivialAugmentWide{}}},
      {"lists",
       {RandomOrder{{RandomApply{{RandomPosterize{4, 1.0}, RandomInvert{1.0}}, 0.5},
                     RandomChoice{{RandomHorizontalFlip{1.0}, RandomVerticalFlip{1.0}}}}}}},
  };
  return all;
}

std::vector<Image> read_pictures(const std::string& folder, std::size_t count) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Image> pictures;
  for (std::size_t i = 0; i < std::min(count, paths.size()); ++i) {
    auto picture = decode_image(paths[i]);
    if (!picture.ok()) throw std::runtime_error(picture.status().message());
    pictures.push_back(std::move(picture.value()));
  }
  if (pictures.size() != count) throw std::runtime_error("too few pictures in " + folder);
  return pictures;
}

// Each picture once; returns pictures per second.
double rate(const Compose& compose, const std::vector<Image>& pictures, std::vector<std::uint8_t>& batch,
            std::int64_t epoch) {
  const auto start = Clock::now();
  std::size_t place = 0;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const SamplePlan plan = compose.draw(pictures[i].size(), {1, epoch, static_cast<std::int64_t>(i)});
    const std::size_t bytes = Compose::shape_of(plan).bytes();
    if (place + bytes > batch.size()) place = 0;
    compose.apply(plan, pictures[i], batch.data() + place);
    place += bytes;
  }
  return static_cast<double>(pictures.size()) / std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures transforms");
  std::string folder, precision = "fast", output;
  std::vector<std::string> names;
  std::size_t count = 64;
  double seconds = 0.3;
  app.add_option("--folder", folder, "pictures")->required();
  app.add_option("--precision", precision)->check(CLI::IsMember({"fast", "exact"}));
  app.add_option("--count", count, "of pictures");
  app.add_option("--seconds", seconds, "at least, for each pipeline");
  app.add_option("--only", names, "pipelines; default: all");
  app.add_option("--output", output, "file for a line of JSON with the rates of each pipeline")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const std::vector<Image> pictures = read_pictures(folder, count);
    // A pass may have more samples than fit. Samples take turns in the memory of a batch.
    std::vector<std::uint8_t> batch(std::size_t{32} * 3 * 256 * 256 * sizeof(float));
    nlohmann::json values;
    for (auto [name, transforms] : pipelines()) {
      if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
      transforms.insert(transforms.end(), {ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
      const Compose compose(transforms, precision == "exact" ? Precision::kExact : Precision::kFast);
      rate(compose, pictures, batch, 0);  // warm-up
      const auto end = Clock::now() + std::chrono::duration<double>(seconds);
      for (std::int64_t epoch = 1; epoch == 1 || Clock::now() < end; ++epoch) {
        values[name].push_back(rate(compose, pictures, batch, epoch));
      }
    }
    std::ofstream(output) << nlohmann::json{{"values", values}};
  } catch (const std::exception& error) {
    std::cerr << "bench_transforms: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
