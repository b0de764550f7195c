// Destinations for the rows of an operation: an Image, or the memory of a tensor, with conversion. Rows may be
// mirrored.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "image/kernels.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

struct Mirror {
  bool horizontal = false;
  bool vertical = false;
  bool operator==(const Mirror&) const = default;
};

using Lookup = std::array<std::uint8_t, 256>;
using Lookups = std::array<Lookup, 3>;  // of R, G and B

// Each row comes once, in any order: begin(y) returns memory for its pixels (and kSlack more bytes), end(y) stores it.
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual std::uint8_t* begin(int y) = 0;
  virtual void end(int y) = 0;
  // Instead of both: stores a row of `width` pixels, each byte replaced by its entry. The same tables for all rows.
  virtual void look_up(int y, const std::uint8_t* pixels, int width, const Lookups& lookups);
};

class ImageSink : public RowSink {
 public:
  // Changes `image` to `size`.
  ImageSink(Image& image, ImageSize size, Mirror mirror = {});
  std::uint8_t* begin(int y) override { return row_.data(); }
  void end(int y) override;

 private:
  Image& image_;
  Mirror mirror_;
  std::vector<std::uint8_t>& row_;
};

// One plane of `size` for each channel, without gaps. `out` has room for them.
class FloatSink : public RowSink {
 public:
  FloatSink(float* out, ImageSize size, int channels, const ToFloat& how, Mirror mirror = {});
  std::uint8_t* begin(int y) override { return row_.data(); }
  void end(int y) override;
  // With tables of converted numbers: no pass over bytes.
  void look_up(int y, const std::uint8_t* pixels, int width, const Lookups& lookups) override;

 private:
  float* first_of(int y) const;

  float* out_;
  ImageSize size_;
  int channels_;
  const ToFloat& how_;
  Mirror mirror_;
  std::vector<std::uint8_t>& row_;
  bool has_tables_ = false;
  std::array<std::array<float, 256>, 3> tables_;
};

class ByteSink : public RowSink {
 public:
  ByteSink(std::uint8_t* out, ImageSize size, int channels, Mirror mirror = {});
  std::uint8_t* begin(int y) override { return row_.data(); }
  void end(int y) override;

 private:
  std::uint8_t* out_;
  ImageSize size_;
  int channels_;
  Mirror mirror_;
  std::vector<std::uint8_t>& row_;
};

}  // namespace lockstep::data
