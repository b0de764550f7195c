// Sums of sparse (COO) tensors: every rank gathers all indices and values, of any number, and adds them up.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "c10d/lockstep_work.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

[[noreturn]] void reject(const std::string& text) {
  throw ArgumentError(ErrorCode::kInvalidArgument, "all_reduce of a sparse tensor: " + text);
}

std::string numbers(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return fmt::format("{}", fmt::join(data, data + tensor.numel(), ","));
}

at::Tensor gather_uneven(ProcessGroupLockstep& group, const at::Tensor& mine, const at::Tensor& counts,
                         const c10d::AllgatherOptions& options) {
  std::vector<std::vector<at::Tensor>> parts(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    std::vector<std::int64_t> sizes = mine.sizes().vec();
    sizes[0] = counts[rank].item<std::int64_t>();
    parts[0].push_back(at::empty(sizes, mine.options()));
  }
  std::vector<at::Tensor> inputs{mine};
  group.allgather(parts, inputs, options);
  return at::cat(parts[0]);
}

// What must agree: elements, sparse and dense dimensions, the sizes.
void check_shapes(ProcessGroupLockstep& group, const at::Tensor& tensor, const c10d::AllgatherOptions& options) {
  at::Tensor shape = at::tensor(tensor.sizes(), at::kLong);
  shape = at::cat({at::tensor({tensor.sparse_dim(), tensor.dense_dim()}, at::kLong), shape});
  at::Tensor all = at::empty({group.getSize(), shape.numel()}, at::kLong);
  group._allgather_base(all, shape, options);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    if (all[rank].equal(shape)) continue;
    throw BackendError(ErrorCode::kMismatch,
                       fmt::format("all_reduce of a sparse tensor: the ranks disagree about sparse dimensions, dense "
                                   "dimensions and sizes: {} on rank {}, {} on rank {}",
                                   numbers(all[rank]), rank, numbers(shape), group.getRank()));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::allreduce_coo(const at::Tensor& tensor,
                                                                   const c10d::AllreduceOptions& opts) {
  if (opts.reduceOp != c10d::ReduceOp::SUM) reject("only SUM is defined");
  if (!tensor.is_cpu()) reject(fmt::format("it must be on the CPU, found it on {}", tensor.device().str()));
  c10d::AllgatherOptions options;
  options.timeout = opts.timeout;
  options.asyncOp = false;
  check_shapes(*this, tensor, options);
  const at::Tensor mine = tensor.coalesce();
  at::Tensor count = at::tensor({mine._nnz()}, at::kLong);
  at::Tensor counts = at::empty({size_}, at::kLong);
  _allgather_base(counts, count, options);
  const at::Tensor indices = gather_uneven(*this, mine.indices().t().contiguous(), counts, options);
  const at::Tensor values = gather_uneven(*this, mine.values(), counts, options);
  const at::Tensor sum = at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), tensor.options()).coalesce();
  at::Tensor(tensor).copy_(sum);
  return c10::make_intrusive<LockstepWork>(rank_, c10d::OpType::ALLREDUCE, std::vector<at::Tensor>{tensor});
}

}  // namespace lockstep
