#include "lockstep/nn/average_gradients.h"

#include <fmt/format.h>

#include <unordered_set>

#include "c10d/world/target.h"
#include "lockstep/c10d/collectives.h"
#include "nn/check_parameter.h"
#include "nn/flat_mean.h"
#include "nn/helpers/named_gradients.h"
#include "nn/sparse_mean.h"

namespace lockstep {
namespace {

constexpr std::int64_t kNoGradient = 0;
constexpr std::int64_t kDenseGradient = 1;
constexpr std::int64_t kSparseRows = 2;

std::int64_t kind_of(const torch::Tensor& gradient) {
  if (!gradient.defined()) return kNoGradient;
  return gradient.is_sparse() ? kSparseRows : kDenseGradient;
}

// Gradients that are sparse on any rank stay sparse, as in the wrapper.
void average(const std::vector<NamedParameter>& parameters, const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<NamedParameter> trained;
  std::vector<std::int64_t> mine;
  prepared(group, [&] {
    std::unordered_set<const void*> seen;
    for (const NamedParameter& parameter : parameters) {
      const torch::Tensor& tensor = parameter.tensor;
      if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      nn_detail::check_parameter(parameter);
      trained.push_back(parameter);
      mine.push_back(kind_of(tensor.grad()));
    }
  });
  if (trained.empty()) return;
  const torch::Tensor kinds = torch::tensor(mine, torch::kInt64).to(trained.front().tensor.device());
  all_reduce(kinds, {.op = c10d::ReduceOp::MAX, .group = group});
  const torch::Tensor anywhere = kinds.cpu();

  std::vector<torch::Tensor> dense;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    const std::int64_t kind = anywhere.const_data_ptr<std::int64_t>()[i];
    torch::Tensor& gradient = trained[i].tensor.mutable_grad();
    if (kind == kSparseRows) {
      const nn_detail::DeviceBackend backend(group, trained[i].tensor.device());
      const auto own = prepared(group, [&] { return nn_detail::own_rows(trained[i], gradient, backend.rank()); });
      gradient = nn_detail::mean_of_rows(own, trained[i].tensor, backend);
    } else if (kind == kDenseGradient) {
      if (!gradient.defined()) gradient = torch::zeros_like(trained[i].tensor);
      dense.push_back(gradient);
    }
  }
  nn_detail::flat_mean(dense, group);
}

}  // namespace

void average_gradients(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group) {
  std::vector<NamedParameter> named;
  named.reserve(parameters.size());
  for (const torch::Tensor& parameter : parameters) {
    named.push_back({fmt::format("parameters[{}]", named.size()), parameter});
  }
  average(named, group);
}

void average_gradients(const torch::nn::Module& module, const ProcessGroup& group) {
  average(nn_detail::distinct_parameters(module), group);
}

}  // namespace lockstep
