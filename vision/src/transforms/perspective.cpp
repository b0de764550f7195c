// RandomPerspective: the corners of the picture move, and a projection takes the pixels along.
#include <algorithm>
#include <cmath>

#include "transforms/kind.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kUnknowns = 8;
using Equation = std::array<double, kUnknowns + 1>;  // the last number is the right side

// Solves in place by elimination with pivots. False: there is not one solution.
bool solve(std::array<Equation, kUnknowns>& rows) {
  double largest = 0.0;
  for (const Equation& row : rows) {
    for (std::size_t i = 0; i < kUnknowns; ++i) largest = std::max(largest, std::abs(row[i]));
  }
  for (std::size_t column = 0; column < kUnknowns; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < kUnknowns; ++row) {
      if (std::abs(rows[row][column]) > std::abs(rows[pivot][column])) pivot = row;
    }
    // The coefficients are whole numbers: what is smaller than this is a rounding error.
    if (std::abs(rows[pivot][column]) <= 1e-13 * largest) return false;
    std::swap(rows[pivot], rows[column]);
    for (std::size_t row = 0; row < kUnknowns; ++row) {
      if (row == column) continue;
      const double factor = rows[row][column] / rows[column][column];
      for (std::size_t i = column; i <= kUnknowns; ++i) rows[row][i] -= factor * rows[column][i];
    }
  }
  for (std::size_t i = 0; i < kUnknowns; ++i) rows[i][kUnknowns] /= rows[i][i];
  return true;
}

}  // namespace

Corners corners_of(ImageSize picture) {
  const double right = picture.width - 1;
  const double bottom = picture.height - 1;
  return {Point{0, 0}, Point{right, 0}, Point{right, bottom}, Point{0, bottom}};
}

Corners random_corners(ImageSize picture, double distortion_scale, CounterRandom& random) {
  const int half_width = picture.width / 2;
  const int half_height = picture.height / 2;
  const int most_x = static_cast<int>(distortion_scale * half_width) + 1;
  const int most_y = static_cast<int>(distortion_scale * half_height) + 1;
  Corners corners = corners_of(picture);
  for (Point& corner : corners) {
    const auto x = static_cast<double>(random.below(most_x));
    const auto y = static_cast<double>(random.below(most_y));
    corner.x += corner.x > 0 ? -x : x;
    corner.y += corner.y > 0 ? -y : y;
  }
  return corners;
}

std::optional<Projection> projection(const Corners& from, const Corners& to) {
  std::array<Equation, kUnknowns> rows{};
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto [x, y] = to[i];
    const auto [u, v] = from[i];
    rows[2 * i] = {x, y, 1, 0, 0, 0, -u * x, -u * y, u};
    rows[2 * i + 1] = {0, 0, 0, x, y, 1, -v * x, -v * y, v};
  }
  if (!solve(rows)) return std::nullopt;
  Projection matrix;
  // torchvision hands on float32.
  for (std::size_t i = 0; i < kUnknowns; ++i) matrix[i] = static_cast<float>(rows[i][kUnknowns]);
  return matrix;
}

std::vector<Kind> perspective_kinds() {
  return {About<RandomPerspective>{
      .name = "RandomPerspective",
      .parameters = {optional("distortion_scale", &RandomPerspective::distortion_scale,
                              between(0, 1, "a distortion_scale from 0 to 1")),
                     probability<RandomPerspective>(), warp_filter<RandomPerspective>(), fill<RandomPerspective>()},
      .draw =
          [](const auto& t, Drawing& d) {
            if (!d.random.chance(t.p)) return;
            const Corners corners = random_corners(d.plan.size, t.distortion_scale, d.random);
            const std::optional<Projection> matrix = projection(corners_of(d.plan.size), corners);
            if (matrix) d.add(PerspectiveStep{*matrix, t.interpolation, t.fill.color});
          },
  }};
}

}  // namespace lockstep::data
