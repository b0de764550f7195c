#include "lockstep/datasets/mnist.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "base/printable.h"
#include "idx.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kPixels = kSide * kSide;
constexpr std::uint8_t kClasses = 10;

// "images-idx3" -> the only existing file among its possible names.
fs::path find_file(const fs::path& root, std::string_view split, std::string_view kind) {
  const std::array folders = {root, root / "MNIST" / "raw", root / "FashionMNIST" / "raw"};
  std::vector<std::string> tried;
  std::vector<std::string> found;
  for (const fs::path& folder : folders) {
    for (const std::string_view packed : {"", ".gz"}) {
      const fs::path path = folder / fmt::format("{}-{}-ubyte{}", split, kind, packed);
      tried.push_back(printable(path.native()));
      std::error_code ignored;
      if (!fs::exists(path, ignored)) continue;
      found.push_back(printable(path.native()));
      break;
    }
  }
  if (found.empty()) {
    throw DataError(
        ErrorCode::kNotFound,
        fmt::format("no {} file; tried {}. Put the MNIST or Fashion-MNIST files into {} or name their folder", kind,
                    fmt::join(tried, ", "), printable(root.native())));
  }
  if (found.size() > 1) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("{} has several datasets ({}): name the folder of the one you mean",
                                printable(root.native()), fmt::join(found, ", ")));
  }
  return found.front();
}

torch::Tensor make_pixel_table(const std::optional<Normalization>& normalization) {
  torch::Tensor table = torch::empty({256}, torch::kFloat);
  float* values = table.mutable_data_ptr<float>();
  for (int pixel = 0; pixel < 256; ++pixel) {
    values[pixel] = static_cast<float>(pixel) / 255.0F;
    if (normalization) values[pixel] = (values[pixel] - normalization->mean) / normalization->standard_deviation;
  }
  return table;
}

}  // namespace

Mnist::Mnist(const fs::path& root, bool train, const MnistOptions& options) {
  if (options.normalization && !std::isnormal(options.normalization->standard_deviation)) {
    throw DataError(ErrorCode::kInvalidArgument,
                    fmt::format("expected a standard deviation other than 0, within the range of float32, found {}",
                                options.normalization->standard_deviation));
  }
  const std::string_view split = train ? "train" : "t10k";
  const fs::path images_path = find_file(root, split, "images-idx3");
  const fs::path labels_path = find_file(root, split, "labels-idx1");
  images_ = read_idx(images_path, std::array<std::int64_t, 3>{-1, kSide, kSide});
  labels_ = read_idx(labels_path, std::array<std::int64_t, 1>{-1});
  if (images_.size(0) != labels_.size(0)) {
    throw DataError(ErrorCode::kCorrupt,
                    fmt::format("{} has {} images but {} has {} labels; they do not belong together",
                                printable(images_path.native()), images_.size(0), printable(labels_path.native()),
                                labels_.size(0)));
  }
  const std::uint8_t* labels = labels_.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < labels_.size(0); ++i) {
    if (labels[i] < kClasses) continue;
    throw DataError(ErrorCode::kCorrupt,
                    fmt::format("{}: label {} at byte {}: expected 0 to {}, found {}", printable(labels_path.native()),
                                i, 8 + i, kClasses - 1, labels[i]));
  }
  value_of_pixel_ = make_pixel_table(options.normalization);
}

Example Mnist::get(std::int64_t index) const {
  Example batch = get_batch({&index, 1});
  return {batch.data[0], batch.target[0]};
}

Example Mnist::get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Example batch(context.empty({count, 1, kSide, kSide}, torch::kFloat), context.empty({count}, torch::kLong));
  float* out = batch.data.mutable_data_ptr<float>();
  std::int64_t* target = batch.target.mutable_data_ptr<std::int64_t>();
  const float* value_of_pixel = value_of_pixel_.const_data_ptr<float>();
  const std::uint8_t* images = images_.const_data_ptr<std::uint8_t>();
  const std::uint8_t* labels = labels_.const_data_ptr<std::uint8_t>();
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= size()) {
      throw SampleError(index, fmt::format("there are {} samples, 0 to {}", size(), size() - 1));
    }
    const std::uint8_t* image = images + index * kPixels;
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) out[pixel] = value_of_pixel[image[pixel]];
    out += kPixels;
    *target++ = labels[index];
  }
  return batch;
}

}  // namespace lockstep::data
