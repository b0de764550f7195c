// The loops of channel_arithmetic.h. Values per channel are doubles, whatever the dtypes of their tensors.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "channel_arithmetic.h"

namespace lockstep::nn_detail::by_loops {
namespace {

using torch::Tensor;
using Values = std::vector<double>;

// Whether the values are in the memory of the CPU, as they are.
bool is_plain(const Tensor& tensor) {
  return !tensor.defined() || (tensor.is_cpu() && tensor.layout() == torch::kStrided && !tensor.is_neg());
}

// Calls function(data) with a pointer to the elements, whichever floating type they have.
template <typename Function>
void read_values(const Tensor& tensor, Function function) {
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, tensor.scalar_type(), "batch normalisation",
                                  [&] { function(tensor.const_data_ptr<scalar_t>()); });
}

template <typename Function>
void write_values(const Tensor& tensor, Function function) {
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, tensor.scalar_type(), "batch normalisation",
                                  [&] { function(tensor.mutable_data_ptr<scalar_t>()); });
}

Values values_of(const Tensor& tensor) {
  Values values(static_cast<std::size_t>(tensor.numel()));
  const std::int64_t stride = tensor.stride(0);
  read_values(tensor, [&](const auto* data) {
    for (std::size_t c = 0; c < values.size(); ++c)
      values[c] = static_cast<double>(data[static_cast<std::int64_t>(c) * stride]);
  });
  return values;
}

template <typename T>
std::vector<T> rounded(const Values& values) {
  return {values.begin(), values.end()};
}

Tensor tensor_of(const Values& values, const torch::TensorOptions& options) {
  Tensor tensor = torch::empty({static_cast<std::int64_t>(values.size())}, options);
  write_values(tensor, [&]<typename T>(T* data) {
    for (std::size_t c = 0; c < values.size(); ++c) data[c] = static_cast<T>(values[c]);
  });
  return tensor;
}

void update_running(const Tensor& running, const Values& now, double factor, double momentum) {
  if (!running.defined()) return;
  const std::int64_t stride = running.stride(0);
  write_values(running, [&]<typename T>(T* data) {
    for (std::size_t c = 0; c < now.size(); ++c) {
      T& value = data[static_cast<std::int64_t>(c) * stride];
      value = static_cast<T>((1 - momentum) * static_cast<double>(value) + momentum * factor * now[c]);
    }
  });
  if (!running.is_inference()) running.unsafeGetTensorImpl()->bump_version();
}

// dx = of_grad dy - of_input (x - mean) - constant, by channel.
template <typename T>
struct Coefficients {
  std::vector<T> of_grad, of_input, mean, constant;
};

template <typename T>
Coefficients<T> coefficients(const Tensor& weight, const Tensor& sums, const BatchStatistics& statistics, double eps) {
  const Values mean = values_of(statistics.mean);
  const Values var = values_of(statistics.var);
  const Values weights = weight.defined() ? values_of(weight) : Values(mean.size(), 1.0);
  const auto* const p = sums.const_data_ptr<double>();
  const double* const s = p + mean.size();
  Values of_grad(mean.size()), of_input(mean.size()), constant(mean.size());
  for (std::size_t c = 0; c < mean.size(); ++c) {
    const double scale = 1 / std::sqrt(var[c] + eps);
    of_grad[c] = scale * weights[c];
    of_input[c] = of_grad[c] * scale * p[c] / statistics.count;
    constant[c] = of_grad[c] * s[c] / statistics.count;
  }
  return {rounded<T>(of_grad), rounded<T>(of_input), rounded<T>(mean), rounded<T>(constant)};
}

// The values of a channel are next to one another, `length` of them.
template <typename T>
void by_planes(const Coefficients<T>& by, std::int64_t length, std::int64_t planes, const T* grad, const T* x,
               T* __restrict out) {
  const std::size_t channels = by.mean.size();
  std::size_t c = 0;
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    const T of_grad = by.of_grad[c], of_input = by.of_input[c], mean = by.mean[c], constant = by.constant[c];
    for (std::int64_t i = 0; i < length; ++i) out[i] = of_grad * grad[i] - of_input * (x[i] - mean) - constant;
    grad += length, x += length, out += length;
    if (++c == channels) c = 0;
  }
}

// Each row has a value of every channel.
template <typename T>
void by_rows(const Coefficients<T>& by, std::int64_t rows, const T* grad, const T* x, T* __restrict out) {
  const std::size_t channels = by.mean.size();
  const T* const of_grad = by.of_grad.data();
  const T* const of_input = by.of_input.data();
  const T* const mean = by.mean.data();
  const T* const constant = by.constant.data();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < channels; ++c)
      out[c] = of_grad[c] * grad[c] - of_input[c] * (x[c] - mean[c]) - constant[c];
    grad += channels, x += channels, out += channels;
  }
}

}  // namespace

bool suit(const BatchNormCall& call) {
  return is_plain(call.input) && is_plain(call.running_mean) && is_plain(call.running_var);
}

// Not for half and bfloat16, whose conversion LibTorch has in vectors, nor where it would share the work among threads.
bool suit(const Tensor& grad_output, const Tensor& input, const Tensor& weight) {
  const torch::Dtype dtype = input.scalar_type();
  return (dtype == torch::kFloat || dtype == torch::kDouble) && grad_output.scalar_type() == dtype &&
         is_plain(grad_output) && is_plain(input) && is_plain(weight) &&
         (input.numel() < at::internal::GRAIN_SIZE || at::get_num_threads() == 1);
}

double count_over_ranks(const Tensor& all) {
  double count = 0;
  read_values(all, [&](const auto* data) {
    for (std::int64_t rank = 1; rank <= all.size(0); ++rank) {
      count += static_cast<double>(data[rank * all.size(1) - 2]) + static_cast<double>(data[rank * all.size(1) - 1]);
    }
  });
  return count;
}

BatchStatistics combine_statistics(const Tensor& all, double count, const BatchNormCall& call) {
  const std::size_t channels = static_cast<std::size_t>(call.input.size(1));
  Values mean(channels), var(channels);
  const auto for_each_rank = [&](auto function) {
    read_values(all, [&](const auto* row) {
      for (std::int64_t rank = 0; rank < all.size(0); ++rank, row += all.size(1)) {
        const double values = static_cast<double>(row[2 * channels]) + static_cast<double>(row[2 * channels + 1]);
        function(values / count, row, row + channels);
      }
    });
  };
  for_each_rank([&](double part, const auto* means, const auto* /*vars*/) {
    for (std::size_t c = 0; c < channels; ++c) mean[c] += part * static_cast<double>(means[c]);
  });
  for_each_rank([&](double part, const auto* means, const auto* vars) {
    for (std::size_t c = 0; c < channels; ++c) {
      const double apart = static_cast<double>(means[c]) - mean[c];
      var[c] += part * (static_cast<double>(vars[c]) + apart * apart);
    }
  });
  update_running(call.running_mean, mean, 1.0, call.momentum);
  update_running(call.running_var, var, count / (count - 1), call.momentum);
  const auto options = call.input.options().dtype(dtype_of_statistics(call.input));
  return {tensor_of(mean, options), tensor_of(var, options), count};
}

Tensor input_gradient(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Tensor& sums,
                      const BatchStatistics& statistics, double eps) {
  const std::int64_t channels = input.size(1);
  Tensor result = torch::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "batch normalisation", [&] {
    const auto by = coefficients<scalar_t>(weight, sums, statistics, eps);
    const auto* const grad = grad_output.const_data_ptr<scalar_t>();
    const auto* const x = input.const_data_ptr<scalar_t>();
    auto* const out = result.mutable_data_ptr<scalar_t>();
    const std::int64_t rows = input.numel() / channels;
    if (rows == input.size(0) || !input.is_contiguous()) {
      by_rows(by, rows, grad, x, out);
    } else {
      by_planes(by, rows / input.size(0), input.size(0) * channels, grad, x, out);
    }
  });
  return result;
}

}  // namespace lockstep::nn_detail::by_loops
