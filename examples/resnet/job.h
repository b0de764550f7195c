// What both programs of this folder share: the arguments, the pictures with their transforms, and what is told of an
// epoch.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace resnet_job {

namespace data = lockstep::data;
namespace report = lockstep::report;

struct Arguments {
  std::string folder;
  std::int64_t epochs = 10;
  int side = 224;           // of the crops
  std::int64_t batch = 32;  // of each process, or replica
  std::uint64_t seed = 1;   // of weights, order and transforms
  int replicas = 2;         // of data_parallel.cpp
  bool resnet50 = false;    // instead of ResNet-18
  bool bf16 = false;        // the forward pass under Autocast; GPUs and processors with AMX or AVX512-BF16 gain
  // The layout of pictures and of the kernels of convolutions; which one is faster depends on processor and sizes.
  bool channels_last = false;
};

// The number at a place among the words.
inline std::int64_t number_at(const std::vector<std::string>& words, std::size_t at, std::int64_t otherwise,
                              long long least = 1) {
  if (words.size() <= at) return otherwise;
  const std::string& word = words[at];
  char* end = nullptr;
  const long long number = std::strtoll(word.c_str(), &end, 10);
  if (word.empty() || *end != '\0' || number < least || number > std::numeric_limits<int>::max()) {
    throw std::invalid_argument("argument " + std::to_string(at + 1) + ": expected a number from " +
                                std::to_string(least) + " on, found '" + word + "'");
  }
  return number;
}

constexpr const char* kOptions = "[--resnet50] [--bf16] [--channels-last]";

// Takes a word that begins with "--". False: any other word.
inline bool take_option(Arguments& a, const std::string& word) {
  if (!word.starts_with("--")) return false;
  if (word == "--resnet50") {
    a.resnet50 = true;
  } else if (word == "--bf16") {
    a.bf16 = true;
  } else if (word == "--channels-last") {
    a.channels_last = true;
  } else {
    throw std::invalid_argument("unknown option '" + word + "': expected some of " + kOptions);
  }
  return true;
}

// FOLDER [EPOCHS [SIDE [BATCH [SEED [REPLICAS]]]]], and options anywhere
inline Arguments parse(int argc, char** argv) {
  Arguments a;
  std::vector<std::string> words;
  for (int at = 1; at < argc; ++at) {
    if (!take_option(a, argv[at])) words.emplace_back(argv[at]);
  }
  if (words.empty() || words.size() > 6) {
    throw std::invalid_argument("expected FOLDER and at most 5 numbers, found " + std::to_string(words.size()) +
                                " words");
  }
  a.folder = words[0];
  a.epochs = number_at(words, 1, a.epochs);
  a.side = static_cast<int>(number_at(words, 2, a.side));
  a.batch = number_at(words, 3, a.batch);
  a.seed = static_cast<std::uint64_t>(number_at(words, 4, static_cast<std::int64_t>(a.seed), 0));
  a.replicas = static_cast<int>(number_at(words, 5, a.replicas));
  return a;
}

// The main function of both programs. `usage`: their arguments.
inline int run(int argc, char** argv, const char* usage, void (*train)(const Arguments&)) {
  const std::string name = std::filesystem::path(argv[0]).filename().native();
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s %s %s; FOLDER has train/CLASS and test/CLASS\n", name.c_str(), usage, kOptions);
    return 2;
  }
  try {
    lockstep::load_cuda();  // the GPUs, where there are some
    train(parse(argc, argv));
    return 0;
  } catch (const c10::Error& error) {  // what() lists LibTorch's functions too
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
  }
  return 1;
}

inline const data::Normalize kNormalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};

inline data::ImageFolder train_pictures(const Arguments& a) {
  return data::ImageFolder(
      a.folder + "/train",
      data::Compose({data::RandomResizedCrop{a.side}, data::RandomHorizontalFlip{}, data::RandomVerticalFlip{},
                     data::RandomRotation{15.0}, data::RandomAffine{.degrees = 0.0, .translate = data::Point{0.1, 0.1}},
                     data::ColorJitter{.brightness = 0.2, .contrast = 0.2, .saturation = 0.2}, data::ToTensor{},
                     kNormalize}));
}

inline data::ImageFolder test_pictures(const Arguments& a) {
  return data::ImageFolder(a.folder + "/test", data::Compose({data::Resize{a.side * 8 / 7}, data::CenterCrop{a.side},
                                                              data::ToTensor{}, kNormalize}));
}

inline lockstep::models::ResNet make_net(const Arguments& a, std::int64_t classes) {
  torch::manual_seed(a.seed);
  const lockstep::models::ResNetOptions options{.num_classes = classes, .small_images = a.side < 64};
  lockstep::models::ResNet net = a.resnet50 ? lockstep::models::resnet50(options) : lockstep::models::resnet18(options);
  return net;
}

inline torch::optim::SGD make_optimizer(const lockstep::models::ResNet& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
}

// Prints what came of an epoch, and logs it in the folder that `lockstep scaling` gives, if it has started the program.
class Told {
 public:
  Told(bool is_first, int world_size) : is_first_(is_first), world_size_(world_size) {
    const std::filesystem::path folder = report::run_folder("");
    if (!is_first || folder.empty()) return;
    log_ = data::value_or_throw(report::RunLog::open(folder));
    log_.start({.world_size = world_size});
  }

  void epoch(const lockstep::EpochReport& epoch) {
    if (!is_first_) return;
    std::printf("Rank 0, epoch %lld: %.2f s, %.2f pictures/s, loss %.4f\n", static_cast<long long>(epoch.epoch),
                epoch.seconds, static_cast<double>(epoch.samples) / epoch.seconds, epoch.loss);
    std::fflush(stdout);
    log_.epoch(epoch.epoch, {.seconds = epoch.seconds, .samples = epoch.samples, .scalars = {{"loss", epoch.loss}}});
    const report::RankTimes mine{.seconds = epoch.seconds_by_part(world_size_)};
    log_.times(epoch.epoch, {&mine, 1});
  }
  void accuracy(std::int64_t epoch, double accuracy) {
    if (!is_first_) return;
    std::printf("Rank 0: test accuracy %.2f %%\n", 100 * accuracy);
    std::fflush(stdout);
    log_.evaluation(epoch, {.scalars = {{"accuracy", accuracy}}});
  }
  void end() { log_.end(); }

 private:
  bool is_first_;
  int world_size_;
  report::RunLog log_;
};

}  // namespace resnet_job
