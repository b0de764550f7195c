#include "lockstep/nn/average_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "c10d/world/target.h"
#include "flight/recorder.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "nn/check_parameter.h"
#include "nn/device_backend.h"
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

// The mean of many tensors over ranks, in one message for each dtype and device. All ranks pass tensors of the same
// shapes in the same order.
void flat_mean(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group) {
  std::vector<std::vector<torch::Tensor>> alike;  // in the order of the first of each, which is that of all ranks
  for (const torch::Tensor& tensor : tensors) {
    const auto same = std::find_if(alike.begin(), alike.end(), [&](const auto& others) {
      return others[0].scalar_type() == tensor.scalar_type() && others[0].device() == tensor.device();
    });
    (same == alike.end() ? alike.emplace_back() : *same).push_back(tensor.detach());
  }
  for (std::vector<torch::Tensor>& same : alike) {
    std::vector<torch::Tensor> flat;
    flat.reserve(same.size());
    for (const torch::Tensor& tensor : same) flat.push_back(tensor.flatten());
    const torch::Tensor all = torch::cat(flat);
    all_reduce(all, {.op = c10d::ReduceOp::AVG, .group = group});
    std::int64_t offset = 0;
    for (torch::Tensor& tensor : same) {
      tensor.copy_(all.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
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
  flat_mean(dense, group);
  flight::end_step();
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

// A group may have no backend for the CPU.
double sample_mean_factor(std::int64_t samples, const ProcessGroup& group) {
  TORCH_CHECK_VALUE(samples >= 0, "sample_mean_factor: expected a number of samples, got ", samples);
  const nn_detail::DeviceBackend backend = nn_detail::DeviceBackend::for_host_data(group, local_device());
  const torch::Tensor sum = torch::full({1}, samples, torch::kInt64).to(backend.device());
  backend.start_sum(sum)->wait();
  const auto all = sum.item<std::int64_t>();
  TORCH_CHECK_VALUE(all > 0, "sample_mean_factor: no rank has a sample in this step");
  return static_cast<double>(backend.world_size()) / static_cast<double>(all);
}

}  // namespace lockstep
