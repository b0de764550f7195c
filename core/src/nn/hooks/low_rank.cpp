#include "low_rank.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace lockstep::nn_detail {
namespace {

// The same numbers on every rank.
void fill_normal(const torch::Tensor& matrix, at::Generator& generator) {
  matrix.copy_(torch::randn(matrix.sizes(), generator, torch::TensorOptions().dtype(matrix.scalar_type())));
}

bool uses_gram_schmidt(const torch::Tensor& matrices) {
  const torch::Dtype dtype = matrices.scalar_type();
  return matrices.size(2) <= 2 || dtype == torch::kHalf || dtype == torch::kBFloat16;
}

void gram_schmidt(const torch::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    torch::Tensor column = matrices.narrow(2, i, 1);
    torch::Tensor length = at::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true);
    if (epsilon == 0) {
      length.masked_fill_(length == 0, 1);
    } else {
      length.add_(epsilon);
    }
    column.div_(length);
    if (i + 1 == columns) continue;
    torch::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum(1, /*keepdim=*/true) * column);
  }
}

}  // namespace

std::uint64_t RandomSeeds::next() {
  constexpr std::uint32_t kLargest = 999'999'999;
  constexpr std::uint32_t kMask = (std::uint32_t{1} << 30) - 1;
  ++drawn_;
  for (;;) {
    const auto value = static_cast<std::uint32_t>(generator_()) & kMask;
    if (value <= kLargest) return value;
  }
}

void orthogonalize(const torch::Tensor& matrices, double epsilon) {
  if (uses_gram_schmidt(matrices)) return gram_schmidt(matrices, epsilon);
  matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
}

LowRank::LowRank(PowerSgdOptions options) : options_(std::move(options)), seeds_(options_.random_seed) {
  TORCH_CHECK_VALUE(options_.matrix_approximation_rank >= 1,
                    "PowerSGD: matrix_approximation_rank must be at least 1, got ", options_.matrix_approximation_rank);
  TORCH_CHECK_VALUE(options_.start_power_sgd_iter >= 0, "PowerSGD: start_power_sgd_iter must not be negative, got ",
                    options_.start_power_sgd_iter);
  TORCH_CHECK_VALUE(options_.min_compression_rate > 0, "PowerSGD: min_compression_rate must be positive, got ",
                    options_.min_compression_rate);
  TORCH_CHECK_VALUE(options_.orthogonalization_epsilon >= 0,
                    "PowerSGD: orthogonalization_epsilon must not be negative, got ",
                    options_.orthogonalization_epsilon);
}

std::optional<at::Generator> LowRank::generator_of_pass(bool has_q) {
  if (options_.warm_start && has_q) return std::nullopt;
  return next_generator();
}

void LowRank::prepare_q(const torch::Tensor& q, std::optional<at::Generator>& generator) {
  if (generator) {
    fill_normal(q, *generator);
  } else {
    renew_zero_columns(q);
  }
  orthogonalize(q, options_.orthogonalization_epsilon);
}

at::Generator LowRank::next_generator() {
  return at::detail::createCPUGenerator(seeds_.next());
}

void LowRank::renew_zero_columns(const torch::Tensor& q) {
  if (!uses_gram_schmidt(q)) return;  // QR makes orthonormal columns of zeros too
  const torch::Tensor zero = at::linalg_vector_norm(q, 2, {1}, /*keepdim=*/true) == 0;
  if (!zero.any().item<bool>()) return;
  at::Generator generator = next_generator();
  const torch::Tensor random = torch::empty_like(q);
  fill_normal(random, generator);
  q.copy_(torch::where(zero, random, q));
}

std::string LowRank::description() const {
  return fmt::format(
             "PowerSGD(matrix_approximation_rank {}, start_power_sgd_iter {}, min_compression_rate {}, "
             "use_error_feedback {}, warm_start {}, orthogonalization_epsilon {}, random_seed {}, "
             "batch_tensors_with_same_shape {})",
             options_.matrix_approximation_rank, options_.start_power_sgd_iter, options_.min_compression_rate,
             options_.use_error_feedback, options_.warm_start, options_.orthogonalization_epsilon, options_.random_seed,
             options_.batch_tensors_with_same_shape) +
         continued(loaded_iteration_);
}

NamedTensors LowRank::counters() const {
  return {{"iteration", counter(iteration_)}, {"seeds_drawn", counter(seeds_.drawn())}};
}

void LowRank::load_counters(const NamedTensors& tensors) {
  const std::int64_t iteration = read_counter(tensors, "iteration");
  const std::int64_t drawn = read_counter(tensors, "seeds_drawn");
  loaded_iteration_ = iteration_ = iteration;
  seeds_ = RandomSeeds(options_.random_seed);
  while (seeds_.drawn() < drawn) seeds_.next();
}

}  // namespace lockstep::nn_detail
