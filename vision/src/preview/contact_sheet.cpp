#include "preview/contact_sheet.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/arithmetic.h"
#include "base/printable.h"
#include "image/encode_png.h"
#include "image/memory_errors.h"
#include "image/resample.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/data/errors.h"
#include "lockstep/image/decode.h"
#include "lockstep/image/folder_index.h"
#include "preview/lettering.h"

namespace lockstep::data {
namespace {

constexpr int kGap = 6;
constexpr int kLabelHeight = Lettering::kLineHeight + 3;
constexpr std::uint8_t kPaper = 32;

// Takes one sample of each class in turn, and leaves out classes that have no more.
std::vector<std::size_t> in_turn(const FolderIndex& index, std::size_t count) {
  std::vector<std::vector<std::size_t>> of_class(index.classes.size());
  for (std::size_t i = 0; i < index.samples.size(); ++i) {
    of_class[static_cast<std::size_t>(index.samples[i].label)].push_back(i);
  }
  std::vector<std::size_t> chosen;
  for (std::size_t round = 0; chosen.size() < std::min(count, index.samples.size()); ++round) {
    for (const std::vector<std::size_t>& samples : of_class) {
      if (round < samples.size() && chosen.size() < count) chosen.push_back(samples[round]);
    }
  }
  return chosen;
}

// The picture after the transforms; of several crops the first one. Throws DataError.
Image transformed(ImageSize size, std::span<const std::uint8_t> bytes, const Compose& transform, const SampleKey& key) {
  const SamplePlan plan = transform.draw(size, key);
  const SampleShape shape = Compose::shape_of(plan);
  std::vector<std::uint8_t> planes(shape.bytes());
  transform.apply(plan, bytes, {}, planes.data());
  Image image(shape.width, shape.height);
  const std::size_t plane = static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.height);
  for (std::size_t i = 0; i < plane; ++i) {
    std::uint8_t* pixel = image.row(0) + i * Image::kBytesPerPixel;
    for (std::size_t c = 0; c < 3; ++c) pixel[c] = planes[(shape.channels == 1 ? 0 : c) * plane + i];
    pixel[3] = 0;
  }
  return image;
}

Image fitted(Image image, int cell) {
  const int longer = std::max(image.width(), image.height());
  if (longer <= cell) return image;
  const auto scaled = [&](std::int64_t side) {
    return static_cast<int>(std::max<std::int64_t>(1, side * cell / longer));
  };
  return resized(image, {scaled(image.width()), scaled(image.height())}, Interpolation::kBilinear);
}

void place(Image& sheet, const Image& picture, int left, int top) {
  for (int y = 0; y < picture.height(); ++y) {
    std::copy_n(picture.row(y), picture.row_bytes(), sheet.row(top + y) + std::ptrdiff_t{left} * Image::kBytesPerPixel);
  }
}

struct Cell {
  Image picture;
  std::string name;
};

// Appends a cell for each epoch. After an error, the cells of the epochs before it stay.
Status add_cells(const FolderIndex& index, std::size_t i, const Compose& transform, const SheetOptions& options,
                 std::vector<Cell>& cells) {
  const FolderIndex::Sample& sample = index.samples[i];
  std::vector<std::uint8_t> bytes;
  LOCKSTEP_RETURN_IF_ERROR(read_image_file(sample.path, bytes));
  const Result<ImageSize> size = image_size(bytes, DecodeOptions{});
  if (!size.ok()) return size.status().with_context(printable(sample.path));
  try {
    for (int e = 0; e < options.epochs; ++e) {
      const SampleKey key{options.seed, options.epoch + e, static_cast<std::int64_t>(i)};
      cells.push_back({fitted(transformed(size.value(), bytes, transform, key), options.cell),
                       index.classes[static_cast<std::size_t>(sample.label)]});
    }
  } catch (const DataError& error) {
    return Status(error.code(), error.what()).with_context(printable(sample.path));
  }
  return {};
}

// Width and height of a sheet with `count` cells. 64 bits: the options may give more pixels than an int holds.
std::pair<std::int64_t, std::int64_t> sheet_size(std::int64_t count, const SheetOptions& options) {
  const std::int64_t columns = std::min<std::int64_t>(options.columns, std::max<std::int64_t>(1, count));
  const std::int64_t rows = std::max<std::int64_t>(1, ceil_divide(count, options.columns));
  return {kGap + columns * (options.cell + kGap), kGap + rows * (options.cell + kLabelHeight + kGap)};
}

// Draws no names when `letters` is null.
Image draw(const std::vector<Cell>& cells, const SheetOptions& options, Lettering* letters) {
  const int columns = options.columns;
  const int side = options.cell;
  const auto count = static_cast<int>(cells.size());
  const auto [width, height] = sheet_size(count, options);
  Image sheet(static_cast<int>(width), static_cast<int>(height));
  std::fill_n(sheet.row(0), sheet.row_bytes() * static_cast<std::size_t>(sheet.height()), kPaper);
  for (int i = 0; i < count; ++i) {
    const Cell& cell = cells[static_cast<std::size_t>(i)];
    const int left = kGap + i % columns * (side + kGap);
    const int top = kGap + i / columns * (side + kLabelHeight + kGap);
    place(sheet, cell.picture, left + (side - cell.picture.width()) / 2, top + (side - cell.picture.height()) / 2);
    if (letters != nullptr) letters->draw(sheet, left, top + side + 2, side, cell.name);
  }
  return sheet;
}

Status check(const SheetOptions& options) {
  const auto inside = [](int value, int most) { return value >= 1 && value <= most; };
  if (inside(options.samples, 10000) && inside(options.columns, 1000) && inside(options.cell, 2000) &&
      inside(options.epochs, 1000) && options.epoch >= 0) {
    return {};
  }
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("expected 1 to 10000 samples, 1 to 1000 columns, cells of 1 to 2000 pixels, 1 to 1000 epochs from "
                  "0 on; got {}, {}, {}, {} from {}",
                  options.samples, options.columns, options.cell, options.epochs, options.epoch)};
}

Status check_size(std::int64_t cells, const SheetOptions& options) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
  const auto [width, height] = sheet_size(cells, options);
  if (width <= kMostPixels / height) return {};
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("the sheet would have {} x {} pixels; expected at most {}: ask for fewer samples or epochs, or for "
                  "smaller cells",
                  width, height, kMostPixels)};
}

}  // namespace

Result<ContactSheet> contact_sheet(const std::filesystem::path& folder, const Compose& transform,
                                   const SheetOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(check(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const FolderIndex index, index_image_folder(folder));
  const std::int64_t samples = std::min<std::int64_t>(options.samples, std::ssize(index.samples));
  LOCKSTEP_RETURN_IF_ERROR(check_size(samples * options.epochs, options));
  ContactSheet result;
  std::vector<Cell> cells;
  for (const std::size_t i : in_turn(index, static_cast<std::size_t>(options.samples))) {
    const Status status =
        or_out_of_memory(index.samples[i].path, [&] { return add_cells(index, i, transform, options, cells); });
    if (status.ok()) {
      ++result.samples;
    } else {
      result.left_out.push_back(status.message());
    }
  }
  Result<Lettering> letters = Lettering::find();
  result.names = letters.status();
  LOCKSTEP_ASSIGN_OR_RETURN(result.image, or_out_of_memory("the sheet", [&]() -> Result<Image> {
                              return draw(cells, options, letters.ok() ? &letters.value() : nullptr);
                            }));
  return result;
}

Status write_png(const Image& image, const std::filesystem::path& path) {
  const Result<std::vector<std::uint8_t>> encoded = encode_png(image);
  if (!encoded.ok()) return encoded.status().with_context(printable(path.native()));
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  LOCKSTEP_RETURN_IF_ERROR(file.append(encoded.value()));
  return file.commit();
}

}  // namespace lockstep::data
