// Which of MPI's reductions serve for ours, and own operations for the rest: half and bfloat16, which MPI does not
// know; booleans; complex numbers; and MIN and MAX of floats, which propagate NaN in this project.
#include <array>
#include <utility>

#include "lockstep/reduce/reduce.h"
#include "mpi/mpi_runtime.h"

namespace lockstep {
namespace {

using comm::DataType;
using comm::ReduceOp;

// MPI's type; null where reductions use our kernels.
MPI_Datatype native_type(DataType type) {
  switch (type) {
    case DataType::kUInt8: return MPI_UINT8_T;
    case DataType::kInt8: return MPI_INT8_T;
    case DataType::kInt16: return MPI_INT16_T;
    case DataType::kInt32: return MPI_INT32_T;
    case DataType::kInt64: return MPI_INT64_T;
    case DataType::kUInt16: return MPI_UINT16_T;
    case DataType::kUInt32: return MPI_UINT32_T;
    case DataType::kUInt64: return MPI_UINT64_T;
    case DataType::kFloat32: return MPI_FLOAT;
    case DataType::kFloat64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL;
  }
}

MPI_Op native_op(DataType type, ReduceOp op) {
  const bool whole = type != DataType::kFloat32 && type != DataType::kFloat64;
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kProduct: return MPI_PROD;
    case ReduceOp::kMin: return whole ? MPI_MIN : MPI_OP_NULL;
    case ReduceOp::kMax: return whole ? MPI_MAX : MPI_OP_NULL;
    case ReduceOp::kBand: return MPI_BAND;
    case ReduceOp::kBor: return MPI_BOR;
    case ReduceOp::kBxor: return MPI_BXOR;
    default: return MPI_OP_NULL;
  }
}

// An MPI_User_function is told neither type nor operation, so there is one for each pair.
template <std::size_t kPair>
void combine(void* input, void* in_out, int* count, MPI_Datatype* /*type*/) {
  constexpr auto kType = static_cast<DataType>(kPair / comm::kNumReduceOps);
  constexpr auto kOp = static_cast<ReduceOp>(kPair % comm::kNumReduceOps);
  const std::array<const std::byte*, 2> inputs{static_cast<const std::byte*>(input),
                                               static_cast<const std::byte*>(in_out)};
  const std::array<std::byte*, 1> outputs{static_cast<std::byte*>(in_out)};
  comm::reduce({kType, kOp, 1.0}, inputs, outputs, static_cast<std::size_t>(*count));
}

template <std::size_t... kPairs>
constexpr std::array<MPI_User_function*, sizeof...(kPairs)> make_table(std::index_sequence<kPairs...>) {
  return {&combine<kPairs>...};
}

constexpr auto kFunctions = make_table(std::make_index_sequence<comm::kNumDataTypes * comm::kNumReduceOps>());

}  // namespace

MpiRuntime::Reduction MpiRuntime::reduction(DataType type, ReduceOp op) {
  if (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) op = ReduceOp::kSum;
  const MPI_Datatype native = native_type(type);
  if (native != MPI_DATATYPE_NULL && native_op(type, op) != MPI_OP_NULL) return {native, native_op(type, op)};
  MPI_Op& own = ops_[static_cast<int>(type)][static_cast<int>(op)];
  if (own == MPI_OP_NULL) {
    const auto pair = static_cast<std::size_t>(type) * comm::kNumReduceOps + static_cast<std::size_t>(op);
    MPI_Op_create(kFunctions[pair], /*commute=*/1, &own);
  }
  return {element_type(static_cast<std::int64_t>(comm::size_of(type))), own};
}

}  // namespace lockstep
