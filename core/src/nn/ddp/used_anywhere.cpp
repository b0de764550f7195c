#include "used_anywhere.h"

#include <utility>

namespace lockstep::nn_detail {

UsedAnywhere::UsedAnywhere(const Backend& backend, std::size_t count) : backend_(backend) {
  const auto size = static_cast<std::int64_t>(count);
  own_ = backend.device().is_cpu() ? backend.allocate(size, torch::kFloat) : torch::zeros({size});
  if (backend.device().is_cpu()) return;
  // Always the same memory: a CUDA graph goes on using it.
  on_device_ = own_.to(backend.device());
  mean_ = torch::empty_like(on_device_);
}

void UsedAnywhere::start() {
  if (backend_.device().is_cpu()) {
    mean_ = own_;
  } else {
    send_own();
  }
  work_ = backend_.start_mean(mean_);
}

void UsedAnywhere::send_own() {
  read_.reset();
  const torch::NoGradGuard no_grad;
  if (!sent_.defined() || !torch::equal(sent_, own_)) {
    sent_.reset();  // until the copy has succeeded
    on_device_.copy_(own_);
    sent_ = own_.clone();
  }
  mean_.copy_(on_device_);
}

void UsedAnywhere::abandon() {
  work_.reset();
}

void UsedAnywhere::wait() {
  std::exchange(work_, nullptr)->wait();
}

bool UsedAnywhere::anywhere(std::size_t i) {
  if (own_.const_data_ptr<float>()[i] != 0) return true;
  if (backend_.device().is_cpu()) return false;
  if (!read_.defined()) read_ = mean_.cpu();
  return read_.const_data_ptr<float>()[i] != 0;
}

}  // namespace lockstep::nn_detail
