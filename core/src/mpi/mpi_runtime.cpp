#include "mpi/mpi_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <thread>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep {
namespace {

// How long the exit of a process waits for other ranks if it has not left its groups, or never had one.
constexpr std::chrono::milliseconds kShortPartingTime{5000};

std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
  }
}

[[noreturn]] void fail(const std::string& text) {
  throw BackendError(ErrorCode::kUnsupported, "backend mpi: " + text);
}

// Returns whether this call has initialised MPI.
bool initialise() {
  int done = 0;
  MPI_Finalized(&done);
  if (done != 0) fail(kMpiFinalised);
  MPI_Initialized(&done);
  int level = MPI_THREAD_SINGLE;
  if (done != 0) {
    MPI_Query_thread(&level);
  } else if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level); code != MPI_SUCCESS) {
    fail(mpi_status(code, "MPI_Init_thread").message());
  }
  if (level < MPI_THREAD_SERIALIZED) {
    fail(
        fmt::format("expected MPI initialised with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, since backward passes "
                    "communicate from threads of their own, found {}; {}",
                    level_name(level),
                    done != 0 ? "the program initialised it: let it call MPI_Init_thread instead of MPI_Init"
                              : "this MPI library offers no more: use one that is built with thread support"));
  }
  return done == 0;
}

// Which of MPI's reductions serve for ours, and own operations for the rest: half and bfloat16, which MPI does not
// know; booleans; complex numbers; and MIN and MAX of floats, which propagate NaN in this project.

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

Status mpi_status(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  int kind = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string message = fmt::format("{}: {}", what, std::string_view(text, static_cast<std::size_t>(length)));
  switch (kind) {
    case MPI_ERR_TRUNCATE: return {ErrorCode::kMismatch, message + "; ranks disagree about the size of a tensor"};
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_RANK:
    case MPI_ERR_ROOT:
    case MPI_ERR_OP: return {ErrorCode::kInvalidArgument, message};
    default: return {ErrorCode::kIo, message};
  }
}

MpiRuntime& MpiRuntime::of_process() {
  static auto* runtime = new MpiRuntime;
  return *runtime;
}

MpiRuntime::MpiRuntime() : own_(initialise()), timeout_(kShortPartingTime) {
  if (own_) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::atexit(&MpiRuntime::at_exit);
  }
  std::fill(std::begin(types_), std::end(types_), MPI_DATATYPE_NULL);
  for (auto& row : ops_) std::fill(std::begin(row), std::end(row), MPI_OP_NULL);
}

int MpiRuntime::rank() {
  MutexLock lock(mutex_);
  int rank = 0;
  MPI_Comm_rank(base_, &rank);
  return rank;
}

int MpiRuntime::size() {
  MutexLock lock(mutex_);
  int size = 1;
  MPI_Comm_size(base_, &size);
  return size;
}

Status MpiRuntime::make_groups_of(MPI_Comm communicator) {
  MutexLock lock(mutex_);
  if (!is_usable()) return {ErrorCode::kAborted, "MPI was finalised"};
  forget_base();
  MPI_Comm copy = MPI_COMM_NULL;
  LOCKSTEP_RETURN_IF_ERROR(mpi_status(MPI_Comm_dup(communicator, &copy), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  base_ = copy;
  return {};
}

void MpiRuntime::forget_base() {
  if (base_ == MPI_COMM_WORLD) return;
  // After an error other ranks may not free theirs, and this could wait for them.
  if (in_order_ && is_usable()) MPI_Comm_free(&base_);
  base_ = MPI_COMM_WORLD;
}

bool MpiRuntime::is_usable() {
  if (finalised_) return false;
  int done = 0;
  MPI_Finalized(&done);
  return done == 0;
}

MPI_Datatype MpiRuntime::element_type(std::int64_t bytes) {
  MPI_Datatype& type = types_[std::countr_zero(static_cast<std::uint64_t>(bytes))];
  if (type == MPI_DATATYPE_NULL) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
    MPI_Type_commit(&type);
  }
  return type;
}

Result<MPI_Comm> MpiRuntime::make_communicator(const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  if (!is_usable()) return Status(ErrorCode::kAborted, "MPI was finalised");
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  int code = MPI_Comm_group(base_, &all);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(base_, members, /*tag=*/0, &communicator);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  if (code == MPI_SUCCESS) return communicator;
  // Not freed: other ranks may not free theirs, and this could wait for them.
  if (groups_ == 0) base_ = MPI_COMM_WORLD;
  return mpi_status(code, "MPI_Comm_create_group");
}

void MpiRuntime::enter_group(std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  ++groups_;
  timeout_ = std::max(timeout_, timeout);
}

void MpiRuntime::leave_group() {
  MutexLock lock(mutex_);
  if (--groups_ == 0) forget_base();
}

void MpiRuntime::give_up_finalising() {
  MutexLock lock(mutex_);
  in_order_ = false;
}

void MpiRuntime::keep_for_ever(std::vector<HeldMemory> tensors, std::vector<std::shared_ptr<const void>> others) {
  MutexLock lock(mutex_);
  for (HeldMemory& one : tensors) kept_tensors_.push_back(std::move(one));
  for (std::shared_ptr<const void>& one : others) kept_others_.push_back(std::move(one));
}

void MpiRuntime::at_exit() {
  if (of_process().origin_.is_this_process()) of_process().finalise();
}

void MpiRuntime::finalise() {
  MutexLock lock(mutex_);
  if (!is_usable() || !in_order_) return;
  if (!all_ranks_exit(groups_ == 0 ? timeout_ : std::min(timeout_, kShortPartingTime))) return;
  finalised_ = true;
  MPI_Finalize();
}

bool MpiRuntime::all_ranks_exit(std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
  for (int done = 0;;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done != 0) return true;
    if (deadline.expired()) return false;
    // Other ranks may train for long: leave them the core.
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

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
