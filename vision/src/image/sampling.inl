// Kernels that read pixels at computed positions; a part of kernels.inl.

// The position after the last pixel may overflow 16.16 fixed point; nothing is read there.
inline std::int32_t next_position(std::int32_t position, std::int32_t step) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(position) + static_cast<std::uint32_t>(step));
}

void gather(const GatherRow& row, std::uint8_t* out) {
  std::int32_t x = row.x;
  std::int32_t y = row.y;
  for (int i = 0; i < row.count; ++i, x = next_position(x, row.dx), y = next_position(y, row.dy)) {
    const std::uint8_t* from = row.pixels + (y >> 16) * row.stride + std::ptrdiff_t{4} * (x >> 16);
    __builtin_memcpy(out + std::ptrdiff_t{4} * i, from, 4);
  }
}

void gather_bilinear(const GatherRow& row, std::uint8_t* out) {
  std::int32_t x = row.x;
  std::int32_t y = row.y;
  for (int i = 0; i < row.count; ++i, x = next_position(x, row.dx), y = next_position(y, row.dy)) {
    const std::uint8_t* upper = row.pixels + (y >> 16) * row.stride + std::ptrdiff_t{4} * (x >> 16);
    const std::uint8_t* lower = upper + row.stride;
    const std::int32_t across = (x >> 8) & 255;
    const std::int32_t down = (y >> 8) & 255;
    const Int4 top = widen_pixel(upper) * (256 - across) + widen_pixel(upper + 4) * across;
    const Int4 bottom = widen_pixel(lower) * (256 - across) + widen_pixel(lower + 4) * across;
    const Int4 value = (top * (256 - down) + bottom * down) >> 16;  // rounded down, as in PIL
    store_pixel(out + std::ptrdiff_t{4} * i, value);
  }
}

void project(const double matrix[8], int row, int count, double* __restrict x, double* __restrict y) {
  double m[8];  // a copy: the compiler then knows that no result overwrites it
  __builtin_memcpy(m, matrix, sizeof(m));
  const double at_y = row + 0.5;
  if (m[6] == 0.0 && m[7] == 0.0) {
    for (int i = 0; i < count; ++i) {
      x[i] = m[0] * (i + 0.5) + m[1] * at_y + m[2];
      y[i] = m[3] * (i + 0.5) + m[4] * at_y + m[5];
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const double at_x = i + 0.5;
    const double depth = m[6] * at_x + m[7] * at_y + 1;
    x[i] = (m[0] * at_x + m[1] * at_y + m[2]) / depth;
    y[i] = (m[3] * at_x + m[4] * at_y + m[5]) / depth;
  }
}

inline __attribute__((always_inline)) Double4 double_pixel(const std::uint8_t* from) {
  return __builtin_convertvector(widen_pixel(from), Double4);
}

void sample_bilinear(const SampledRow& row, std::uint8_t* out) {
  for (int i = 0; i < row.count; ++i, out += 4) {
    double x = row.x[i];
    double y = row.y[i];
    if (!(x >= 0.0 && x < row.width && y >= 0.0 && y < row.height)) {  // also NaN
      __builtin_memcpy(out, row.fill, 4);
      continue;
    }
    x -= 0.5;
    y -= 0.5;
    const int left = static_cast<int>(x) - (x < 0.0 ? 1 : 0);
    const int top = static_cast<int>(y) - (y < 0.0 ? 1 : 0);
    const double across = x - left;
    const double down = y - top;
    const std::ptrdiff_t from_left = std::ptrdiff_t{4} * (left < 0 ? 0 : left);
    const std::ptrdiff_t from_right = std::ptrdiff_t{4} * (left + 1 < row.width ? left + 1 : row.width - 1);
    const std::uint8_t* upper = row.pixels + (top < 0 ? 0 : top) * row.stride;
    const std::uint8_t* lower = row.pixels + (top + 1 < row.height ? top + 1 : row.height - 1) * row.stride;
    const Double4 upper_left = double_pixel(upper + from_left);
    const Double4 lower_left = double_pixel(lower + from_left);
    const Double4 above = upper_left + (double_pixel(upper + from_right) - upper_left) * across;
    const Double4 below = lower_left + (double_pixel(lower + from_right) - lower_left) * across;
    store_pixel(out, __builtin_convertvector(above + (below - above) * down, Int4));
  }
}

inline __attribute__((always_inline)) Float4 float_pixel(const std::uint8_t* from) {
  return __builtin_convertvector(widen_pixel(from), Float4);
}

void sample_grid(const GridRow& row, std::uint8_t* out) {
  const Float4 fill = {row.fill[0], row.fill[1], row.fill[2], row.fill[3]};
  for (int i = 0; i < row.count; ++i, out += 4) {
    const float x = row.x[i];
    const float y = row.y[i];
    if (!(x > -1.0F && x < static_cast<float>(row.width) && y > -1.0F && y < static_cast<float>(row.height))) {
      store_pixel(out, __builtin_convertvector(fill, Int4));
      continue;
    }
    const int left = static_cast<int>(x) - (x < 0.0F ? 1 : 0);
    const int top = static_cast<int>(y) - (y < 0.0F ? 1 : 0);
    const float across = x - static_cast<float>(left);
    const float down = y - static_cast<float>(top);
    // The weights of the four neighbours.
    const float weights[4] = {(1.0F - across) * (1.0F - down), across * (1.0F - down), (1.0F - across) * down,
                              across * down};
    Float4 sum{};
    float inside = 0.0F;
    for (int n = 0; n < 4; ++n) {
      const int at_x = left + (n & 1);
      const int at_y = top + (n >> 1);
      if (at_x < 0 || at_x >= row.width || at_y < 0 || at_y >= row.height) continue;
      sum += float_pixel(row.pixels + at_y * row.stride + std::ptrdiff_t{4} * at_x) * weights[n];
      inside += weights[n];
    }
    store_pixel(out, __builtin_convertvector(nearest_whole(sum * inside + (1.0F - inside) * fill), Int4));
  }
}
