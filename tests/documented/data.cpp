// Code of docs/data.md and of the headers of data, as it stands there.
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/data_partitioner.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/data/views.h"
#include "lockstep/datasets/cifar.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/mix.h"
#include "lockstep/datasets/mnist.h"
#include "lockstep/datasets/packed_images.h"

namespace lockstep::data {
namespace {

[[maybe_unused]] void pictures() {
  using namespace lockstep::data;  // NOLINT(google-build-using-namespace): quoted
  ImageFolder train("imagenet/train", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{},
                                               ColorJitter{.brightness = 0.4, .contrast = 0.4}, ToTensor{},
                                               Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}}));
  DataLoader loader(std::move(train), {.batch_size = 64, .shuffle = true, .num_workers = 4});
  for (auto& [images, labels] : loader) {
    (void)images, (void)labels;
  }
}

[[maybe_unused]] void feeding(const std::shared_ptr<const Dataset>& dataset, torch::Device device) {
  DataLoader loader(dataset,
                    {.batch_size = 64, .shuffle = true, .seed = 1, .num_workers = kAutoWorkers, .device = device});
}

[[maybe_unused]] void data_loader_header() {
  DataLoader loader(Mnist("data", /*train=*/true), {.batch_size = 64, .shuffle = true});
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& [images, labels] : loader) {
      (void)images, (void)labels;
    }
  }
}

[[maybe_unused]] void data_partitioner_header(const Dataset& dataset, std::size_t world_size, int rank) {
  DataPartitioner partitioner(dataset.size(), std::vector<double>(world_size, 1.0 / world_size));
  std::span<const std::int64_t> mine = partitioner.use(rank);
  (void)mine;
}

struct Sentence {
  torch::Tensor tokens;
  torch::Tensor label;
};
auto fields(Sentence& sentence) {
  return std::tie(sentence.tokens, sentence.label);
}

class Sentences : public DatasetOf<Sentence> {
 public:
  explicit Sentences(std::string folder);
  std::int64_t size() const override;
  Sentence get(std::int64_t index) const override;
};

void train_on(const std::string& folder) {
  DataLoaderOf loader(Sentences(folder), {.batch_size = 64, .shuffle = true});
  for (Sentence& batch : loader) {
    (void)batch;
  }
}

// Declared above for the reader, who has such a class.
Sentences::Sentences(std::string folder) {
  (void)folder;
}
std::int64_t Sentences::size() const {
  return 0;
}
Sentence Sentences::get(std::int64_t index) const {
  return {torch::tensor(index), torch::tensor(index)};
}

[[maybe_unused]] void data_loader_of_header() {
  train_on("corpus");
  DataLoaderOf loader(Sentences("corpus"), {.batch_size = 64, .shuffle = true});
  for (Sentence& batch : loader) {
    (void)batch;
  }
}

[[maybe_unused]] void any_sample(const std::shared_ptr<const Dataset>& dataset, const torch::Tensor& inputs,
                                 const torch::Tensor& labels) {
  auto parts = random_split(dataset, {0.9, 0.1}, /*seed=*/42);
  DataLoader train(parts[0], {.batch_size = 64, .shuffle = true});
  DataLoader rows(TensorDataset(inputs, labels), {.batch_size = 64});
}

class Lines : public lockstep::data::IterableDatasetOf<std::string> {
 public:
  lockstep::data::SampleStream<std::string> iterate(const lockstep::data::StreamShare& share) const override {
    auto file = std::make_shared<std::ifstream>("corpus.txt");
    const auto next = [file]() -> std::optional<std::string> {
      std::string line;
      return std::getline(*file, line) ? std::optional(line) : std::nullopt;
    };
    return lockstep::data::take_turns<std::string>(next, share);
  }
};

[[maybe_unused]] void tensor_dataset_header(const torch::Tensor& inputs, const torch::Tensor& labels) {
  TensorDataset train(inputs, labels);
}

[[maybe_unused]] void cifar_header() {
  Cifar10 train("data", /*train=*/true, Compose({RandomCrop{32, 4}, RandomHorizontalFlip{}, ToTensor{}}));
}

class Squares : public lockstep::data::Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  lockstep::data::Example get(std::int64_t index) const override {
    return {torch::tensor(double(index)), torch::tensor(double(index * index))};
  }
};

[[maybe_unused]] void image_folder_header() {
  ImageFolder train("imagenet/train", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{}, ToTensor{}}));
  DataLoader loader(std::move(train), {.batch_size = 64, .shuffle = true, .num_workers = 4});
}

[[maybe_unused]] void mix_header(DataLoader& loader, std::uint64_t seed, std::int64_t epoch, std::int64_t step) {
  for (auto& batch : loader) {
    CounterRandom random({seed, epoch, step}, 0);
    batch = mixup(batch, {.num_classes = 1000, .alpha = 0.2}, random);
  }
}

[[maybe_unused]] void mnist_header(std::span<const std::int64_t> indices) {
  lockstep::data::Mnist train("data", /*train=*/true);
  auto [images, labels] = train.get_batch(indices);
}

[[maybe_unused]] void pack_header() {
  Result<PackSummary> packed = pack_folder("imagenet/train", "train.pack", {.shorter_side = 256});
  PackedImages train("train.pack", Compose({RandomResizedCrop{224}, RandomHorizontalFlip{}, ToTensor{}}));
}

[[maybe_unused]] void samplers_header(const std::shared_ptr<const Dataset>& dataset,
                                      const std::vector<std::int64_t>& labels) {
  auto sampler = std::make_shared<WeightedSampler>(balanced_weights(labels), labels.size());
  DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
}

[[maybe_unused]] void transforms_header() {
  Compose train({RandomResizedCrop{224}, RandomHorizontalFlip{}, ColorJitter{.brightness = 0.4, .contrast = 0.4},
                 ToTensor{}, Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
}

[[maybe_unused]] void lists() {
  Compose train({RandomResizedCrop{224}, RandomHorizontalFlip{},
                 RandomApply{{RandomChoice{{ColorJitter{.hue = 0.1}, RandomSolarize{128.0}}}}, 0.2}, ToTensor{},
                 Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
}

[[maybe_unused]] void views_header(const std::vector<std::int64_t>& first_thousand, Example (*add_noise)(Example)) {
  auto train = map_dataset(Subset(Mnist("data", true), first_thousand), add_noise);
  DataLoader loader(repeat(train, 10), {.batch_size = 64, .shuffle = true});
}

}  // namespace
}  // namespace lockstep::data
