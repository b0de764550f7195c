// The transforms of a training whose configuration has none. Pictures of folders and packs get those of torchvision's
// training reference (references/classification/presets.py), CIFAR those that its trainings usually have. MNIST's and
// generated pictures are tensors already.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "trainer/command/command.h"

namespace lockstep::trainer_detail {
namespace {

using Texts = std::vector<std::string>;

constexpr std::int64_t kUsualSide = 224;
constexpr std::int64_t kSmallSide = 32;
constexpr std::int64_t kMnistSide = 28;

bool is_cifar(DataFormat format) {
  return format == DataFormat::kCifar10 || format == DataFormat::kCifar100;
}

// With the mean and standard deviation of the channels of these data; of ImageNet for pictures of folders.
Texts with_numbers(Texts texts, DataFormat format) {
  const char* const numbers = format == DataFormat::kCifar10    ? "[0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]"
                              : format == DataFormat::kCifar100 ? "[0.5071, 0.4867, 0.4408], [0.2675, 0.2565, 0.2761]"
                                                                : "[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]";
  texts.emplace_back("ToTensor");
  texts.push_back(fmt::format("Normalize({})", numbers));
  return texts;
}

Texts training_transforms(DataFormat format, std::int64_t side) {
  if (!is_cifar(format)) {
    return with_numbers({fmt::format("RandomResizedCrop({})", side), "RandomHorizontalFlip"}, format);
  }
  Texts texts{"RandomCrop(32, padding=4)", "RandomHorizontalFlip"};
  if (side != kSmallSide) texts.push_back(fmt::format("Resize({})", side));
  return with_numbers(texts, format);
}

Texts evaluation_transforms(DataFormat format, std::int64_t side) {
  if (is_cifar(format))
    return with_numbers(side == kSmallSide ? Texts{} : Texts{fmt::format("Resize({})", side)}, format);
  // As 256 to 224 in torchvision.
  const std::int64_t resized = std::lround(static_cast<double>(side) * 256 / 224);
  return with_numbers({fmt::format("Resize({})", resized), fmt::format("CenterCrop({})", side)}, format);
}

}  // namespace

std::int64_t picture_side(const TrainCommandOptions& o) {
  if (o.image_size > 0) return o.image_size;
  if (o.format == DataFormat::kMnist) return kMnistSide;
  return o.small_images || is_cifar(o.format) ? kSmallSide : kUsualSide;
}

void complete(TrainCommandOptions& o) {
  o.image_size = picture_side(o);
  if (o.format == DataFormat::kMnist || o.format == DataFormat::kFake || !o.transforms.empty()) return;
  o.transforms = training_transforms(o.format, o.image_size);
  if (o.test_transforms.empty()) o.test_transforms = evaluation_transforms(o.format, o.image_size);
}

}  // namespace lockstep::trainer_detail
