// Images a second of ImageFolder (or PackedImages) and DataLoader, for the pipelines of bench/peers/loader.py.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/packed_images.h"

namespace {

using namespace lockstep::data;  // NOLINT(google-build-using-namespace): a program

std::vector<Transform> pipeline(const std::string& name) {
  std::vector<Transform> transforms{RandomResizedCrop{224}, RandomHorizontalFlip{}};
  if (name == "reference") {
    transforms.insert(transforms.end(), {RandomVerticalFlip{}, RandomRotation{45}, RandomAffine{45}, ColorJitter{}});
  }
  transforms.insert(transforms.end(), {ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
  return transforms;
}

std::shared_ptr<const Dataset> open_pictures(const std::string& path, Compose transform) {
  if (std::filesystem::is_directory(path)) return std::make_shared<ImageFolder>(path, std::move(transform));
  return std::make_shared<PackedImages>(path, std::move(transform));
}

double epoch_rate(DataLoader& loader) {
  const auto start = std::chrono::steady_clock::now();
  std::int64_t images = 0;
  for (auto& [data, target] : loader) images += target.size(0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(images) / seconds.count();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the loader");
  std::string folder;
  std::string name = "reference";
  std::string precision = "fast";
  std::string output;
  int workers = 2;
  int epochs = 2;
  app.add_option("--folder", folder, "or a pack")->required();
  app.add_option("--pipeline", name)->check(CLI::IsMember({"reference", "crop-flip"}));
  app.add_option("--precision", precision)->check(CLI::IsMember({"fast", "exact"}));
  app.add_option("--workers", workers);
  app.add_option("--epochs", epochs);
  app.add_option("--output", output, "a line of JSON: images a second of each epoch")->required();
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  Compose transform(pipeline(name), precision == "exact" ? Precision::kExact : Precision::kFast);
  DataLoader loader(open_pictures(folder, std::move(transform)),
                    {.batch_size = 32, .shuffle = true, .num_workers = workers});
  epoch_rate(loader);  // warm-up: files cached
  std::vector<double> rates;
  for (int epoch = 0; epoch < epochs; ++epoch) rates.push_back(epoch_rate(loader));
  std::ofstream(output) << nlohmann::json{{"images_per_second", rates}};
  return 0;
}
