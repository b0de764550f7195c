// Selects the code for the type and operation of a request. Part of reduce_kernels.inl.
//
// Every switch names every value, so that a new type or operation does not compile before it has its place here. What
// is_supported() refuses never comes here; it would do nothing.
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wswitch"

template <class Format, class Scalar>
void average_floats(const ReduceRequest& r) {
  const auto n = static_cast<Scalar>(r.divisor);
  if ((r.divisor & (r.divisor - 1)) == 0) return combine_often<Format>(r, MeanByFactor<Scalar>{{}, 1 / n});
  combine_often<Format>(r, MeanByDivision<Scalar>{{}, n});
}

template <class Format, class Scalar>
void reduce_floats(const ReduceRequest& r) {
  switch (r.op) {
    case ReduceOp::kSum: return combine_often<Format>(r, Sum{});
    case ReduceOp::kPremulSum: return combine<Format>(r, ScaledSum<Scalar>{{}, static_cast<Scalar>(r.factor)});
    case ReduceOp::kAvg: return average_floats<Format, Scalar>(r);
    case ReduceOp::kProduct: return combine<Format>(r, Product{});
    case ReduceOp::kMin: return combine<Format>(r, Min{});
    case ReduceOp::kMax: return combine<Format>(r, Max{});
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return;
  }
}

// Sums and means of complex numbers are those of their parts.
template <class Format, class Scalar>
void reduce_complex(const ReduceRequest& r) {
  switch (r.op) {
    case ReduceOp::kSum: return combine_often<Format>(r, Sum{});
    case ReduceOp::kPremulSum: return combine<Format>(r, ScaledSum<Scalar>{{}, static_cast<Scalar>(r.factor)});
    case ReduceOp::kAvg: return average_floats<Format, Scalar>(r);
    case ReduceOp::kProduct: return combine<Format>(r, ComplexProduct<Scalar>{});
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return;
  }
}

template <class Unsigned>
void add_integers(const ReduceRequest& r) {
  combine_often<Plain<Unsigned>>(r, Sum{});
}

template <class Unsigned>
void multiply_integers(const ReduceRequest& r) {
  combine<Plain<Unsigned>>(r, Product{});
}

// Adds in 64 bits, so that sums of narrower types do not wrap. One element at a time: there is no vector division.
template <class Scalar, class Wide>
void average_integers(const ReduceRequest& r) {
  const auto divisor = static_cast<Wide>(r.divisor);
  for (std::size_t at = 0; at < r.bytes; at += sizeof(Scalar)) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < r.num_inputs; ++i) {
      Scalar value;
      __builtin_memcpy(&value, r.inputs[i] + at, sizeof value);
      sum += static_cast<std::uint64_t>(static_cast<Wide>(value));
    }
    const auto mean = static_cast<Scalar>(static_cast<Wide>(sum) / divisor);
    for (std::size_t i = 0; i < r.num_outputs; ++i) __builtin_memcpy(r.outputs[i] + at, &mean, sizeof mean);
  }
}

template <class Scalar, class Unsigned, class Wide>
void reduce_integers(const ReduceRequest& r) {
  switch (r.op) {
    case ReduceOp::kSum: return add_integers<Unsigned>(r);
    case ReduceOp::kProduct: return multiply_integers<Unsigned>(r);
    case ReduceOp::kMin: return combine<Plain<Scalar>>(r, Min{});
    case ReduceOp::kMax: return combine<Plain<Scalar>>(r, Max{});
    case ReduceOp::kAvg: return average_integers<Scalar, Wide>(r);
    case ReduceOp::kBand: return combine<Plain<std::uint8_t>>(r, And{});
    case ReduceOp::kBor: return combine<Plain<std::uint8_t>>(r, Or{});
    case ReduceOp::kBxor: return combine<Plain<std::uint8_t>>(r, Xor{});
    case ReduceOp::kPremulSum: return;
  }
}

void reduce_bools(const ReduceRequest& r) {
  switch (r.op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor: return combine<Bool>(r, Or{});
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand: return combine<Bool>(r, And{});
    case ReduceOp::kBxor: return combine<Bool>(r, Xor{});
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: return;
  }
}

void dispatch(const ReduceRequest& r) {
  switch (r.type) {
    case DataType::kUInt8: return reduce_integers<std::uint8_t, std::uint8_t, std::uint64_t>(r);
    case DataType::kInt8: return reduce_integers<std::int8_t, std::uint8_t, std::int64_t>(r);
    case DataType::kInt16: return reduce_integers<std::int16_t, std::uint16_t, std::int64_t>(r);
    case DataType::kInt32: return reduce_integers<std::int32_t, std::uint32_t, std::int64_t>(r);
    case DataType::kInt64: return reduce_integers<std::int64_t, std::uint64_t, std::int64_t>(r);
    case DataType::kUInt16: return reduce_integers<std::uint16_t, std::uint16_t, std::uint64_t>(r);
    case DataType::kUInt32: return reduce_integers<std::uint32_t, std::uint32_t, std::uint64_t>(r);
    case DataType::kUInt64: return reduce_integers<std::uint64_t, std::uint64_t, std::uint64_t>(r);
    case DataType::kFloat16: return reduce_floats<Float16, float>(r);
    case DataType::kBFloat16: return reduce_floats<BFloat16, float>(r);
    case DataType::kFloat32: return reduce_floats<Plain<float>, float>(r);
    case DataType::kFloat64: return reduce_floats<Plain<double>, double>(r);
    case DataType::kComplex64: return reduce_complex<Plain<float>, float>(r);
    case DataType::kComplex128: return reduce_complex<Plain<double>, double>(r);
    case DataType::kComplex32: return reduce_complex<Float16, float>(r);
    case DataType::kBool: return reduce_bools(r);
    case DataType::kByte: return;
  }
}

#pragma GCC diagnostic pop
