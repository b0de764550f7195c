#include "c10d/backend/sparse_sum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "c10d/backend/staging.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

std::string numbers(const at::Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return fmt::format("{}", fmt::join(data, data + tensor.numel(), ","));
}

at::Tensor gather_uneven(c10d::Backend& group, const at::Tensor& mine, const at::Tensor& counts,
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

// Throws unless all ranks have the same sparse dimensions, dense dimensions and sizes.
void check_shapes(c10d::Backend& group, const SparseCaller& caller, const at::Tensor& tensor,
                  const c10d::AllgatherOptions& options) {
  at::Tensor shape = at::tensor(tensor.sizes(), at::kLong);
  shape = at::cat({at::tensor({tensor.sparse_dim(), tensor.dense_dim()}, at::kLong), shape});
  at::Tensor all = at::empty({group.getSize(), shape.numel()}, at::kLong);
  group._allgather_base(all, shape, options);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    if (all[rank].equal(shape)) continue;
    throw BackendError(
        ErrorCode::kMismatch,
        fmt::format("{}, all_reduce of a sparse tensor: the ranks disagree about sparse dimensions, "
                    "dense dimensions and sizes: {} on rank {}, {} on rank {}{}",
                    caller.who, numbers(all[rank]), rank, numbers(shape), group.getRank(), caller.explanation));
  }
}

}  // namespace

bool is_sparse_sum(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 && tensors.front().defined() && tensors.front().is_sparse();
}

void check_sparse_sum(const CallChecks& checks, const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  if (opts.reduceOp != c10d::ReduceOp::SUM) {
    checks.reject(
        "of a sparse tensor only SUM is defined: unsupported reduction operation (allreduce of sparse tensors "
        "only works with ReduceOp.SUM)");
  }
  if (!can_stage(tensor.device().type())) {
    checks.reject("a sparse tensor must be on the CPU or a CUDA device, found it on {}", tensor.device().str());
  }
}

void sum_sparse(c10d::Backend& group, const SparseCaller& caller, const at::Tensor& tensor,
                const c10d::AllreduceOptions& opts) {
  c10d::AllgatherOptions options;
  options.timeout = opts.timeout;
  options.asyncOp = false;
  check_shapes(group, caller, tensor, options);
  const at::Tensor mine = tensor.coalesce();
  at::Tensor count = at::tensor({mine._nnz()}, at::kLong);
  at::Tensor counts = at::empty({group.getSize()}, at::kLong);
  group._allgather_base(counts, count, options);
  const at::Tensor indices = gather_uneven(group, mine.indices().t().contiguous(), counts, options);
  const at::Tensor values = gather_uneven(group, mine.values(), counts, options);
  const at::Tensor sum = at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), tensor.options()).coalesce();
  at::Tensor(tensor).copy_(sum);
}

}  // namespace lockstep
