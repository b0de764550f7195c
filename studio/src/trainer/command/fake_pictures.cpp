#include "trainer/command/fake_pictures.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "lockstep/data/errors.h"
#include "lockstep/transforms/counter_random.h"

namespace lockstep::trainer_detail {
namespace {

constexpr std::int64_t kPictures = 16;

}  // namespace

FakePictures::FakePictures(std::int64_t size, std::int64_t classes, std::int64_t side, std::int64_t seed)
    : pictures_(torch::randn({kPictures, 3, side, side},
                             at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed)))) {
  labels_.reserve(static_cast<std::size_t>(size));
  for (std::int64_t index = 0; index < size; ++index) {
    data::CounterRandom random({static_cast<std::uint64_t>(seed), 0, index}, 0);
    labels_.push_back(random.below(classes));
  }
}

data::Example FakePictures::get(std::int64_t index) const {
  return data::only_sample(get_batch({&index, 1}));
}

data::Example FakePictures::get_batch(std::span<const std::int64_t> indices, const data::SampleContext& context) const {
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

}  // namespace lockstep::trainer_detail
