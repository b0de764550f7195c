// Several affine transforms as one resampling. Along an output row, the position in the frame of each stage moves on a
// straight line. Therefore the pixels that are inside of all frames form one interval. Integer arithmetic finds it, and
// the pixels in it need no further tests.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/affine.h"
#include "image/fixed_point.h"

namespace lockstep::data {
namespace {

// The matrix that applies `inner` first, then `outer`.
AffineMatrix combined(const AffineMatrix& outer, const AffineMatrix& inner) {
  const auto& o = outer;
  const auto& i = inner;
  return {o[0] * i[0] + o[1] * i[3], o[0] * i[1] + o[1] * i[4], o[0] * i[2] + o[1] * i[5] + o[2],
          o[3] * i[0] + o[4] * i[3], o[3] * i[1] + o[4] * i[4], o[3] * i[2] + o[4] * i[5] + o[5]};
}

struct Line {
  std::int64_t x, y;
  std::int64_t dx, dy;
};

Line line_of(const AffineMatrix& m, int row) {
  const double y = row + 0.5;
  return {fixed(m[0] * 0.5 + m[1] * y + m[2]), fixed(m[3] * 0.5 + m[4] * y + m[5]), fixed(m[0]), fixed(m[3])};
}

void keep_inside(Interval& interval, const Line& line, ImageSize frame) {
  narrow(interval, line.x, line.dx, 0, std::int64_t{frame.width} << 16);
  narrow(interval, line.y, line.dy, 0, std::int64_t{frame.height} << 16);
}

class RowGatherer {
 public:
  RowGatherer(const View& picture, Interpolation filter) : picture_(picture), filter_(filter) {}

  void gather(const Line& line, Interval inside, std::uint8_t* out) const {
    if (inside.begin == inside.end) return;
    if (filter_ == Interpolation::kNearest) return nearest(line, inside, out);
    // Positions outside of the centres of the outermost pixels lack neighbours: these few pixels come from the edge.
    Line centered = line;
    centered.x -= kHalf;
    centered.y -= kHalf;
    Interval mixed = inside;
    narrow(mixed, centered.x, centered.dx, 0, most_x() + 1);
    narrow(mixed, centered.y, centered.dy, 0, most_y() + 1);
    edge(centered, {inside.begin, mixed.begin}, out);
    if (mixed.begin == mixed.end) return edge(centered, {mixed.end, inside.end}, out);
    image_kernels().gather_bilinear(row_from(centered, mixed), out + 4 * mixed.begin);
    edge(centered, {mixed.end, inside.end}, out);
  }

 private:
  static constexpr std::int64_t kHalf = 1 << 15;
  // The last position whose right and lower neighbours exist.
  std::int64_t most_x() const { return (std::int64_t{picture_.width - 1} << 16) - 1; }
  std::int64_t most_y() const { return (std::int64_t{picture_.height - 1} << 16) - 1; }

  GatherRow row_from(const Line& line, Interval part) const {
    return {picture_.pixels,
            static_cast<std::int64_t>(picture_.stride),
            static_cast<std::int32_t>(line.x + part.begin * line.dx),
            static_cast<std::int32_t>(line.y + part.begin * line.dy),
            static_cast<std::int32_t>(line.dx),
            static_cast<std::int32_t>(line.dy),
            static_cast<int>(part.end - part.begin)};
  }
  void nearest(const Line& line, Interval inside, std::uint8_t* out) const {
    image_kernels().gather(row_from(line, inside), out + 4 * inside.begin);
  }
  void edge(const Line& line, Interval part, std::uint8_t* out) const {
    for (std::int64_t i = part.begin; i < part.end; ++i) {
      Line at = line;
      at.x = std::clamp<std::int64_t>(line.x + i * line.dx, 0, most_x());
      at.y = std::clamp<std::int64_t>(line.y + i * line.dy, 0, most_y());
      image_kernels().gather_bilinear(row_from(at, {0, 1}), out + 4 * i);
    }
  }

  const View& picture_;
  Interpolation filter_;
};

}  // namespace

void transform_fused(const View& picture, ImageSize size, std::span<const AffineStage> stages, Interpolation filter,
                     Color fill, RowSink& sink) {
  thread_local std::vector<AffineMatrix> matrices;  // maps the output to the frame of each stage
  matrices.clear();
  for (const AffineStage& stage : stages) {
    matrices.push_back(matrices.empty() ? stage.matrix : combined(stage.matrix, matrices.back()));
  }
  const RowGatherer gatherer(picture, filter);
  for (int y = 0; y < size.height; ++y) {
    Interval inside{0, size.width};
    for (std::size_t s = 0; s < stages.size(); ++s) keep_inside(inside, line_of(matrices[s], y), stages[s].frame);
    std::uint8_t* out = sink.begin(y);
    fill_pixels(out, static_cast<int>(inside.begin), fill);
    gatherer.gather(line_of(matrices.back(), y), inside, out);
    fill_pixels(out + 4 * inside.end, size.width - static_cast<int>(inside.end), fill);
    sink.end(y);
  }
}

}  // namespace lockstep::data
