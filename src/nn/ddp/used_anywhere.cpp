#include "used_anywhere.h"

#include <utility>

namespace lockstep::nn_detail {

UsedAnywhere::UsedAnywhere(const Backend& backend, std::size_t count) : backend_(backend) {
  const auto size = static_cast<std::int64_t>(count);
  own_ = backend.device().is_cpu() ? backend.allocate(size, torch::kFloat) : torch::zeros({size});
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
  if (!sent_.defined() || !torch::equal(sent_, own_)) {
    sent_ = own_.clone();
    on_device_ = own_.to(backend_.device());
    mean_ = torch::empty_like(on_device_);
  }
  const torch::NoGradGuard no_grad;
  mean_.copy_(on_device_);
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
