#include "sparse_mean.h"

namespace lockstep::nn_detail {

torch::Tensor own_rows(const NamedParameter& parameter, const torch::Tensor& gradient, int rank) {
  const torch::Tensor& tensor = parameter.tensor;
  torch::Tensor own = gradient;
  if (!own.defined()) {
    own = torch::sparse_coo_tensor(tensor.sizes(), tensor.options().layout(torch::kSparse));
  } else if (!own.is_sparse()) {
    own = own.to_sparse(1);
  }
  own = own.coalesce();
  TORCH_CHECK(own._nnz() == 0 || own.sparse_dim() == 1, "rank ", rank, ": the gradient of parameter '", parameter.name,
              "' has ", own.sparse_dim(), " sparse dimensions; only gradients that are sparse in rows are reduced");
  return own;
}

torch::Tensor mean_of_rows(const torch::Tensor& own, const torch::Tensor& parameter, const DeviceBackend& backend) {
  // Flat and on the parameter's device, also where this rank has none.
  const bool none = own._nnz() == 0;
  const auto indices = backend.all_gather_uneven(none ? torch::empty({0}, parameter.options().dtype(torch::kInt64))
                                                      : own.indices().flatten());
  const auto values = backend.all_gather_uneven(none ? torch::empty({0}, parameter.options()) : own.values().flatten());
  std::vector<std::int64_t> row = parameter.sizes().slice(1).vec();
  row.insert(row.begin(), -1);
  return torch::sparse_coo_tensor(torch::cat(indices).view({1, -1}), torch::cat(values).view(row), parameter.sizes())
      .coalesce()
      .div_(backend.world_size());
}

}  // namespace lockstep::nn_detail
