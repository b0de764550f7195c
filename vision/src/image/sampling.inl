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

void project(const double matrix[6], int row, int count, double* __restrict x, double* __restrict y) {
  double m[6];  // a copy: the compiler then knows that no result overwrites it
  __builtin_memcpy(m, matrix, sizeof(m));
  const double at_y = row + 0.5;
  for (int i = 0; i < count; ++i) {
    x[i] = m[0] * (i + 0.5) + m[1] * at_y + m[2];
    y[i] = m[3] * (i + 0.5) + m[4] * at_y + m[5];
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
