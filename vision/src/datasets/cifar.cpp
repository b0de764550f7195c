#include "lockstep/datasets/cifar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "base/printable.h"
#include "gzip_file.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kCifarSide = 32;
constexpr std::size_t kPlane = kCifarSide * kCifarSide;
constexpr std::size_t kPicture = 3 * kPlane;

bool has_all(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return fs::exists(folder / name, ignored); });
}

std::vector<std::string> read_lines(const fs::path& path) {
  std::vector<std::string> lines;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

}  // namespace

Cifar::Cifar(const fs::path& root, const Files& files, Compose transform) : ImageDataset(std::move(transform), {}) {
  const fs::path inner = root / files.folder;
  const fs::path folder = has_all(inner, files.pictures) ? inner : root;
  if (!has_all(folder, files.pictures)) {
    std::error_code ignored;
    const bool python = fs::exists(root / files.python_folder, ignored);
    throw DataError(
        ErrorCode::kNotFound,
        fmt::format(
            "expected {} in {} or in {}{}; unpack {} there", fmt::join(files.pictures, ", "), printable(inner.native()),
            printable(root.native()),
            python ? fmt::format(", found {} with Python's files, which are not read here", files.python_folder) : "",
            files.archive));
  }
  folder_ = folder.native();
  for (const std::string& name : files.pictures) read(folder / name, files);
  classes_ = read_lines(folder / files.classes);
}

void Cifar::read(const fs::path& path, const Files& files) {
  GzipFile file(path);
  const std::size_t record_bytes = static_cast<std::size_t>(files.label_bytes) + kPicture;
  std::vector<std::uint8_t> record(record_bytes);
  for (std::int64_t number = 0;; ++number) {
    const std::uint64_t at = file.position();
    const std::size_t got = file.read(record);
    if (got == 0 && number > 0) return;
    if (got != record_bytes) {
      throw DataError(
          ErrorCode::kCorrupt,
          fmt::format("{}: picture {} at byte {}: expected {} bytes, found {}; the file is cut short or not a "
                      "binary CIFAR file",
                      printable(path.native()), number, at, record_bytes, got));
    }
    const int label = record[static_cast<std::size_t>(files.label_byte)];
    if (label >= files.num_classes) {
      throw DataError(ErrorCode::kCorrupt,
                      fmt::format("{}: label of picture {} at byte {}: expected 0 to {}, found {}",
                                  printable(path.native()), number, at, files.num_classes - 1, label));
    }
    labels_.push_back(label);
    pixels_.insert(pixels_.end(), record.end() - static_cast<std::ptrdiff_t>(kPicture), record.end());
  }
}

Result<Picture> Cifar::read_picture(std::int64_t index, std::vector<std::uint8_t>& /*scratch*/) const {
  Image picture(kCifarSide, kCifarSide);
  std::uint8_t* out = picture.row(0);
  const std::uint8_t* planes = pixels_.data() + static_cast<std::size_t>(index) * kPicture;
  for (std::size_t i = 0; i < kPlane; ++i) {
    for (std::size_t channel = 0; channel < 3; ++channel) *out++ = planes[channel * kPlane + i];
    *out++ = 255;  // unused
  }
  return Picture(std::move(picture));
}

std::string Cifar::name(std::int64_t index) const {
  return fmt::format("picture {} of {}", index, folder_);
}

Cifar10::Cifar10(const fs::path& root, bool train, Compose transform)
    : Cifar(root,
            {.folder = "cifar-10-batches-bin",
             .pictures = train ? std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                          "data_batch_4.bin", "data_batch_5.bin"}
                               : std::vector<std::string>{"test_batch.bin"},
             .classes = "batches.meta.txt",
             .python_folder = "cifar-10-batches-py",
             .archive = "cifar-10-binary.tar.gz"},
            std::move(transform)) {}

Cifar100::Cifar100(const fs::path& root, bool train, Compose transform, CifarLabels labels)
    : Cifar(root,
            {.folder = "cifar-100-binary",
             .pictures = {train ? "train.bin" : "test.bin"},
             .classes = labels == CifarLabels::kFine ? "fine_label_names.txt" : "coarse_label_names.txt",
             .label_bytes = 2,
             .label_byte = labels == CifarLabels::kFine ? 1 : 0,
             .num_classes = labels == CifarLabels::kFine ? 100 : 20,
             .python_folder = "cifar-100-python",
             .archive = "cifar-100-binary.tar.gz"},
            std::move(transform)) {}

}  // namespace lockstep::data
