// ImageFolder (or PackedImages) and DataLoader, for the pipelines of bench/peers/loader.py: images per second, the time
// to index a folder and to get its first batch, and memory after each epoch.
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/data/data_loader.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/packed_images.h"

namespace {

using namespace lockstep::data;  // NOLINT(google-build-using-namespace): a program

std::vector<Transform> pipeline(const std::string& name) {
  std::vector<Transform> transforms{RandomResizedCrop{224}, RandomHorizontalFlip{}};
  if (name == "reference") {
    transforms.insert(transforms.end(),
                      {RandomVerticalFlip{}, RandomRotation{45}, RandomAffine{45}, ColorJitter{0.4, 0.4, 0.4, 0.1}});
  }
  transforms.insert(transforms.end(), {ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
  return transforms;
}

std::shared_ptr<const Dataset> open_pictures(const std::string& path, Compose transform) {
  if (std::filesystem::is_directory(path)) return std::make_shared<ImageFolder>(path, std::move(transform));
  return std::make_shared<PackedImages>(path, std::move(transform));
}

struct Options {
  std::string folder;
  std::string measure = "rates";
  std::string pipeline = "reference";
  std::string precision = "fast";
  std::string output;
  int workers = 2;
  int epochs = 2;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::shared_ptr<const Dataset> open_dataset(const Options& options) {
  const Precision precision = options.precision == "exact" ? Precision::kExact : Precision::kFast;
  return open_pictures(options.folder, Compose(pipeline(options.pipeline), precision));
}

DataLoaderOptions loader_options(const Options& options) {
  return {.batch_size = 32, .shuffle = true, .num_workers = options.workers};
}

double epoch_rate(DataLoader& loader) {
  const auto start = std::chrono::steady_clock::now();
  std::int64_t images = 0;
  for (auto& [data, target] : loader) images += target.size(0);
  return static_cast<double>(images) / seconds_since(start);
}

double resident_mib() {
  std::int64_t all = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

std::vector<double> measure(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  DataLoader loader(open_dataset(options), loader_options(options));
  if (options.measure == "index") return {seconds_since(start)};
  if (options.measure == "first-batch") {
    const DataLoader::Iterator first = loader.begin();
    return {seconds_since(start)};
  }
  epoch_rate(loader);  // warm-up: caches the files
  std::vector<double> values;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const double rate = epoch_rate(loader);
    values.push_back(options.measure == "memory" ? resident_mib() : rate);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the loader");
  Options options;
  app.add_option("--folder", options.folder, "a folder or a pack")->required();
  app.add_option("--measure", options.measure,
                 "rates: images per second of each epoch; memory: MiB after each epoch; index, first-batch: seconds")
      ->check(CLI::IsMember({"rates", "memory", "index", "first-batch"}));
  app.add_option("--pipeline", options.pipeline)->check(CLI::IsMember({"reference", "crop-flip"}));
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fast", "exact"}));
  app.add_option("--workers", options.workers);
  app.add_option("--epochs", options.epochs);
  app.add_option("--output", options.output, "file for a line of JSON with the values")->required();
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  std::ofstream(options.output) << nlohmann::json{{"values", measure(options)}};
  return 0;
}
