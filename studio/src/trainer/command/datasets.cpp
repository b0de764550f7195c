#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "base/printable.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/datasets/cifar.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/mnist.h"
#include "lockstep/datasets/packed_images.h"
#include "lockstep/transforms/parse.h"
#include "trainer/command/command_parts.h"
#include "trainer/saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

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

template <typename Pictures, typename Open>
TrainCommandData open_pictures(const TrainCommandOptions& options, const Open& open) {
  const auto train =
      with_key("data.train", [&] { return std::make_shared<const Pictures>(open(options.train, options.transforms)); });
  TrainCommandData data{train, nullptr, train->classes()};
  if (options.test.empty()) return data;
  const auto& texts = options.test_transforms.empty() ? options.transforms : options.test_transforms;
  const auto test = with_key("data.test", [&] { return std::make_shared<const Pictures>(open(options.test, texts)); });
  if (test->classes() != data.classes) {
    throw std::runtime_error(
        fmt::format("data.test: {} has {} classes and data.train {} has {}; they must be the same ones: {}",
                    printable(options.test), test->classes().size(), printable(options.train), data.classes.size(),
                    first_other_class({"in data.test", text_of_classes(test->classes())},
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
  return {train, test, cifar_classes(*train, classes)};
}

}  // namespace

TrainCommandData open_data(const TrainCommandOptions& options) {
  switch (options.format) {
    case DataFormat::kMnist: {
      const auto mnist = [](const char* key, const std::string& folder, bool train) {
        return with_key(key, [&] { return std::make_shared<const data::Mnist>(folder, train); });
      };
      return {mnist("data.train", options.train, true), mnist("data.test", test_folder(options), false),
              class_numbers(10)};
    }
    case DataFormat::kCifar10: return open_cifar<data::Cifar10>(options, 10);
    case DataFormat::kCifar100: return open_cifar<data::Cifar100>(options, 100);
    case DataFormat::kPack:
      return open_pictures<data::PackedImages>(options, [&](const std::string& path, const auto& texts) {
        return data::PackedImages(path, transforms_of(texts), image_options(options));
      });
    case DataFormat::kImageFolder: break;
  }
  return open_pictures<data::ImageFolder>(options, [&](const std::string& path, const auto& texts) {
    return data::ImageFolder(path, transforms_of(texts),
                             {.image = image_options(options), .index = {.allow_empty = options.allow_empty}});
  });
}

TrainCommandData open_test_data(const TrainCommandOptions& options, const std::vector<std::string>& classes) {
  TrainCommandData data{nullptr, nullptr, classes};
  const auto transforms = transforms_of(options.test_transforms);
  const auto take = [&](const auto& test, const std::vector<std::string>& found) {
    const std::string other =
        first_other_class({"in the data", text_of_classes(found)}, {"in the model", text_of_classes(classes)});
    if (!other.empty()) throw std::runtime_error(fmt::format("{}: {}", printable(options.test), other));
    data.test = test;
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
      case DataFormat::kImageFolder: break;
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
    const auto* pictures = dynamic_cast<const data::ImageDataset*>(dataset.get());
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
