// Where the last operation on pixels puts its rows: into an Image, or converted straight into a tensor, mirrored or
// not.
#pragma once

#include <vector>

#include "data/image/kernels.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

struct Mirror {
  bool horizontal = false;
  bool vertical = false;
  bool operator==(const Mirror&) const = default;
};

// Rows come in any order, each once: begin(y) answers memory for its pixels (and kSlack bytes more), end(y) takes it.
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual std::uint8_t* begin(int y) = 0;
  virtual void end(int y) = 0;
};

class ImageSink : public RowSink {
 public:
  // Gives `image` the size that the rows will fill.
  ImageSink(Image& image, ImageSize size, Mirror mirror = {});
  std::uint8_t* begin(int y) override { return row_.data(); }
  void end(int y) override;

 private:
  Image& image_;
  Mirror mirror_;
  std::vector<std::uint8_t>& row_;
};

// Planes of `size`, one a channel, without gaps.
class FloatSink : public RowSink {
 public:
  FloatSink(float* out, ImageSize size, int channels, const ToFloat& how, Mirror mirror = {});
  std::uint8_t* begin(int y) override { return row_.data(); }
  void end(int y) override;

 private:
  float* out_;
  ImageSize size_;
  int channels_;
  const ToFloat& how_;
  Mirror mirror_;
  std::vector<std::uint8_t>& row_;
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
