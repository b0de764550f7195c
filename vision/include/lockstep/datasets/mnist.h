// MNIST and datasets in its format (Fashion-MNIST, KMNIST): 28x28 grey images of 10 classes.
//
//   lockstep::data::Mnist train("data", /*train=*/true);
//   auto [images, labels] = train.get_batch(indices);  // float [n, 1, 28, 28], int64 [n]
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// value -> (value - mean) / standard_deviation
struct Normalization {
  float mean = 0.0F;
  float standard_deviation = 1.0F;
};

// The values of PyTorch's MNIST examples. For Fashion-MNIST use 0.2860 and 0.3530.
inline constexpr Normalization kMnistNormalization{0.1307F, 0.3081F};

struct MnistOptions {
  // Applied to pixels in [0, 1]; std::nullopt leaves them unchanged. The same bits as torchvision's ToTensor and
  // Normalize.
  std::optional<Normalization> normalization = kMnistNormalization;
};

class Mnist : public Dataset {
 public:
  // Reads train-images-idx3-ubyte and train-labels-idx1-ubyte (t10k-... when `train` is false), each plain or as .gz,
  // into memory (47 MB). They are in `root` or where torchvision puts them: root/MNIST/raw or root/FashionMNIST/raw.
  // Only one of these folders may have them.
  //
  // Throws DataError: kNotFound lists the names that were tried, kCorrupt says which file is damaged and how,
  // kInvalidArgument means several folders with files, or a standard deviation of 0.
  Mnist(const std::filesystem::path& root, bool train, const MnistOptions& options = {});

  std::int64_t size() const override { return labels_.size(0); }
  // Float [1, 28, 28] and int64 [].
  Example get(std::int64_t index) const override;
  // Float [n, 1, 28, 28] and int64 [n], written in one pass.
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override;

  const torch::Tensor& images() const { return images_; }  // uint8 [size, 28, 28], as in the file
  const torch::Tensor& labels() const { return labels_; }  // uint8 [size]

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
  torch::Tensor value_of_pixel_;  // float [256]: each possible pixel, converted and normalized
};

}  // namespace lockstep::data
