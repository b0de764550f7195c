#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/errors.h"
#include "lockstep/datasets/cifar.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/mnist.h"
#include "lockstep/datasets/packed_images.h"
#include "lockstep/transforms/counter_random.h"
#include "lockstep/transforms/parse.h"
#include "trainer/command/command_parts.h"
#include "trainer/saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

// Generated pictures (data.format: fake), as torchvision's FakeData: noise, with random classes. They cost a copy each,
// so a training with them shows the speed that no reading and decoding holds up. A sample is float [3, side, side] and
// int64 [], and the same for the same arguments. A few pictures take turns.
class FakePictures final : public data::Dataset {
 public:
  FakePictures(std::int64_t size, std::int64_t classes, std::int64_t side, std::int64_t seed)
      : pictures_(torch::randn({kPictures, 3, side, side},
                               at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed)))) {
    labels_.reserve(static_cast<std::size_t>(size));
    for (std::int64_t index = 0; index < size; ++index) {
      data::CounterRandom random({static_cast<std::uint64_t>(seed), 0, index}, 0);
      labels_.push_back(random.below(classes));
    }
  }

  std::int64_t size() const override { return std::ssize(labels_); }
  data::Example get(std::int64_t index) const override { return data::only_sample(get_batch({&index, 1})); }
  data::Example get_batch(std::span<const std::int64_t> indices,
                          const data::SampleContext& context = {}) const override {
    const std::int64_t count = std::ssize(indices);
    torch::Tensor pictures = context.empty({count, 3, pictures_.size(2), pictures_.size(3)}, torch::kFloat);
    torch::Tensor labels = context.empty({count}, torch::kLong);
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t index = indices[static_cast<std::size_t>(row)];
      if (index < 0 || index >= size()) {
        throw data::SampleError(index, fmt::format("there are {} samples, 0 to {}", size(), size() - 1));
      }
      pictures[row].copy_(pictures_[index % kPictures]);
      labels.mutable_data_ptr<std::int64_t>()[row] = labels_[static_cast<std::size_t>(index)];
    }
    return {pictures, labels};
  }
  const std::vector<std::int64_t>& labels() const { return labels_; }

 private:
  static constexpr std::int64_t kPictures = 16;

  torch::Tensor pictures_;
  std::vector<std::int64_t> labels_;
};

data::Compose transforms_of(const std::vector<std::string>& texts) {
  auto transforms = data::parse_transforms(texts);
  if (!transforms.ok()) throw std::runtime_error(transforms.status().message());
  return data::Compose(std::move(transforms).value());
}

data::ImageOptions image_options(const TrainCommandOptions& options) {
  switch (options.on_corrupt) {
    case CorruptPolicy::kReplace: return {.on_corrupt = data::OnCorrupt::kReplace};
    case CorruptPolicy::kSkip: return {.on_corrupt = data::OnCorrupt::kSkip};
    default: return {};
  }
}

// MNIST and CIFAR have the test beside the training.
const std::string& test_folder(const TrainCommandOptions& options) {
  return options.test.empty() ? options.train : options.test;
}

std::vector<std::int64_t> labels_of(const data::ImageFolder& folder) {
  std::vector<std::int64_t> labels;
  labels.reserve(folder.samples().size());
  for (const auto& sample : folder.samples()) labels.push_back(sample.label);
  return labels;
}

std::vector<std::int64_t> labels_of(const data::PackedImages& packed) {
  std::vector<std::int64_t> labels;
  labels.reserve(static_cast<std::size_t>(packed.size()));
  for (std::int64_t i = 0; i < packed.size(); ++i) labels.push_back(packed.pack().label(i));
  return labels;
}

std::vector<std::int64_t> labels_of(const data::Mnist& mnist) {
  const torch::Tensor labels = mnist.labels().to(torch::kLong).contiguous();
  return {labels.const_data_ptr<std::int64_t>(), labels.const_data_ptr<std::int64_t>() + labels.numel()};
}

// Puts the parts of data.validation_share into `data`, whose labels are those of both datasets.
void take_parts(TrainCommandData& data, const TrainCommandOptions& options,
                const std::shared_ptr<const data::Dataset>& training,
                const std::shared_ptr<const data::Dataset>& evaluation) {
  DataParts parts = with_key("data.validation_share", [&] {
    return split_by_class(data.labels, data.classes, options.validation_share, options.seed,
                          options.format == DataFormat::kFake ? "give a larger data.fake_size" : kMorePictures);
  });
  std::vector<std::int64_t> labels;
  labels.reserve(parts.training.size());
  for (const std::int64_t index : parts.training) labels.push_back(data.labels[static_cast<std::size_t>(index)]);
  data.labels = std::move(labels);
  data.train = std::make_shared<const DataPart>(training, std::move(parts.training));
  data.test = std::make_shared<const DataPart>(evaluation, std::move(parts.evaluation));
}

template <typename Pictures, typename Open>
TrainCommandData open_pictures(const TrainCommandOptions& options, const Open& open) {
  const auto train =
      with_key("data.train", [&] { return std::make_shared<const Pictures>(open(options.train, options.transforms)); });
  TrainCommandData data{train, nullptr, train->classes(), labels_of(*train)};
  const auto& texts = options.test_transforms.empty() ? options.transforms : options.test_transforms;
  if (options.validation_share > 0) {
    const auto evaluation =
        with_key("data.train", [&] { return std::make_shared<const Pictures>(open(options.train, texts)); });
    if (evaluation->size() != train->size()) throw std::runtime_error("data.train: its files change at this moment");
    take_parts(data, options, train, evaluation);
  }
  if (options.test.empty()) return data;
  const auto test = with_key("data.test", [&] { return std::make_shared<const Pictures>(open(options.test, texts)); });
  if (test->classes() != data.classes) {
    throw std::runtime_error(
        fmt::format("data.test: {} has {} classes and data.train {} has {}; they must be the same ones: {}",
                    printable(options.test), test->classes().size(), printable(options.train), data.classes.size(),
                    first_other_name({"in data.test", text_of_classes(test->classes())},
                                     {"in data.train", text_of_classes(data.classes)})));
  }
  data.test = test;
  return data;
}

std::vector<std::string> class_numbers(int count) {
  std::vector<std::string> names;
  names.reserve(count);
  for (int i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

// The names of the classes are in a file of its own, which may be missing.
template <typename Cifar>
std::vector<std::string> cifar_classes(const Cifar& pictures, int count) {
  return std::ssize(pictures.classes()) == count ? pictures.classes() : class_numbers(count);
}

template <typename Cifar>
TrainCommandData open_cifar(const TrainCommandOptions& options, int classes) {
  const auto train = with_key("data.train", [&] {
    return std::make_shared<const Cifar>(options.train, true, transforms_of(options.transforms));
  });
  const auto& texts = options.test_transforms.empty() ? options.transforms : options.test_transforms;
  const auto test = with_key(
      "data.test", [&] { return std::make_shared<const Cifar>(test_folder(options), false, transforms_of(texts)); });
  return {train, test, cifar_classes(*train, classes), train->labels()};
}

TrainCommandData open_fake_data(const TrainCommandOptions& options) {
  const auto pictures = std::make_shared<const FakePictures>(options.fake_size, options.fake_classes,
                                                             picture_side(options), options.seed);
  TrainCommandData data{pictures, nullptr, class_numbers(static_cast<int>(options.fake_classes)), pictures->labels()};
  if (options.validation_share > 0) take_parts(data, options, pictures, pictures);
  return data;
}

}  // namespace

TrainCommandData open_data(const TrainCommandOptions& options) {
  switch (options.format) {
    case DataFormat::kMnist: {
      const auto mnist = [](const char* key, const std::string& folder, bool train) {
        return with_key(key, [&] { return std::make_shared<const data::Mnist>(folder, train); });
      };
      const auto train = mnist("data.train", options.train, true);
      return {train, mnist("data.test", test_folder(options), false), class_numbers(10), labels_of(*train)};
    }
    case DataFormat::kCifar10: return open_cifar<data::Cifar10>(options, 10);
    case DataFormat::kCifar100: return open_cifar<data::Cifar100>(options, 100);
    case DataFormat::kPack:
      return open_pictures<data::PackedImages>(options, [&](const std::string& path, const auto& texts) {
        return data::PackedImages(path, transforms_of(texts), image_options(options));
      });
    case DataFormat::kFake: return open_fake_data(options);
    case DataFormat::kImageFolder: break;
  }
  return open_pictures<data::ImageFolder>(options, [&](const std::string& path, const auto& texts) {
    return data::ImageFolder(path, transforms_of(texts),
                             {.image = image_options(options), .index = {.allow_empty = options.allow_empty}});
  });
}

TrainCommandData open_test_data(const TrainCommandOptions& options, const std::vector<std::string>& classes,
                                bool in_parts) {
  TrainCommandData data{nullptr, nullptr, classes};
  const auto transforms = transforms_of(options.test_transforms);
  const auto take = [&](const auto& test, const std::vector<std::string>& found) {
    const std::string other =
        first_other_name({"in the data", text_of_classes(found)}, {"in the model", text_of_classes(classes)});
    if (!other.empty()) throw std::runtime_error(fmt::format("{}: {}", printable(options.test), other));
    data.test = test;
    if (!in_parts) return;
    if constexpr (requires { labels_of(*test); }) data.labels = labels_of(*test);
    take_parts(data, options, test, test);
  };
  with_key("data", [&] {
    switch (options.format) {
      case DataFormat::kMnist: return take(std::make_shared<const data::Mnist>(options.test, false), class_numbers(10));
      case DataFormat::kCifar10: {
        const auto test = std::make_shared<const data::Cifar10>(options.test, false, transforms);
        return take(test, cifar_classes(*test, 10));
      }
      case DataFormat::kCifar100: {
        const auto test = std::make_shared<const data::Cifar100>(options.test, false, transforms);
        return take(test, cifar_classes(*test, 100));
      }
      case DataFormat::kPack: {
        const auto test = std::make_shared<const data::PackedImages>(options.test, transforms, image_options(options));
        return take(test, test->classes());
      }
      case DataFormat::kFake:
        throw std::runtime_error("the model was trained on generated pictures (data.format: fake), which nobody keeps");
      case DataFormat::kImageFolder: break;
    }
    if (in_parts) {
      const auto test = std::make_shared<const data::ImageFolder>(
          options.test, transforms,
          data::ImageFolderOptions{.image = image_options(options), .index = {.allow_empty = options.allow_empty}});
      return take(test, test->classes());
    }
    // A folder may lack classes of the training.
    const auto numbers = std::make_shared<std::vector<std::int64_t>>();
    const auto test = std::make_shared<const data::ImageFolder>(
        options.test, transforms,
        data::ImageFolderOptions{.image = image_options(options),
                                 .index = {.allow_empty = options.allow_empty},
                                 .target_transform = [numbers](std::int64_t label) { return numbers->at(label); }});
    for (const std::string& name : test->classes()) {
      const auto place = std::find(classes.begin(), classes.end(), printable(name));
      if (place == classes.end()) {
        throw std::runtime_error(fmt::format("{} has the class '{}', which the model does not know; it knows {}",
                                             printable(options.test), printable(name), fmt::join(classes, ", ")));
      }
      numbers->push_back(place - classes.begin());
    }
    data.test = test;
  });
  return data;
}

std::vector<data::CorruptFile> corrupt_files_of_rank(const TrainCommandData& data) {
  std::vector<data::CorruptFile> files;
  for (const auto& dataset : {data.train, data.test}) {
    const data::ImageDataset* pictures = dataset ? pictures_of(*dataset) : nullptr;
    if (pictures == nullptr) continue;
    const std::vector<data::CorruptFile> found = pictures->corrupt_files();
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::vector<data::CorruptFile> corrupt_files(const TrainCommandData& data) {
  std::vector<std::string> mine;  // name, reason and times of each
  for (const data::CorruptFile& file : corrupt_files_of_rank(data)) {
    mine.insert(mine.end(), {file.name, file.reason, std::to_string(file.times)});
  }
  std::map<std::string, data::CorruptFile> all;  // a picture may come to another rank in each epoch
  for (const std::vector<std::string>& words : all_gather_object(mine)) {
    for (std::size_t i = 0; i + 2 < words.size(); i += 3) {
      data::CorruptFile& file = all.try_emplace(words[i], data::CorruptFile{words[i], words[i + 1]}).first->second;
      file.times += std::stoll(words[i + 2]);
    }
  }
  std::vector<data::CorruptFile> files;
  files.reserve(all.size());
  for (const auto& [name, file] : all) files.push_back(file);
  return files;
}

}  // namespace lockstep::trainer_detail
