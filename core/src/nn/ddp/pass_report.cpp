#include "pass_report.h"

#include <algorithm>

#include "base/call_place.h"

namespace lockstep::nn_detail {

PassReport::PassReport(const DeviceBackend& backend, std::size_t parameters, bool tells_buffers)
    : backend_(backend), parameters_(parameters), tells_buffers_(tells_buffers), on_cpu_(backend.device().is_cpu()) {
  const auto size = static_cast<std::int64_t>(on_cpu_ ? guarded_slot() + 2 : first_dropped_slot());
  own_ = on_cpu_ ? backend.allocate(size, torch::kFloat) : torch::zeros({size});
  if (on_cpu_) return;
  // Always the same memory: a CUDA graph goes on using it.
  on_device_ = own_.to(backend.device());
  mean_ = torch::empty_like(on_device_);
}

// Each rank rules out the numbers that are impossible here.
void PassReport::set_dropped(bool known, std::size_t least, std::size_t most) {
  if (!on_cpu_) return;
  least = std::min(least, kDroppedSlots - 1);
  most = std::min(most, kDroppedSlots - 1);
  for (std::size_t number = 0; number < kDroppedSlots; ++number) {
    set(first_dropped_slot() + number, known && (number < least || number > most));
  }
}

bool PassReport::dropped_differ() {
  if (!on_cpu_) return false;
  for (std::size_t number = 0; number < kDroppedSlots; ++number) {
    if (!anywhere(first_dropped_slot() + number)) return false;
  }
  return true;
}

void PassReport::start() {
  if (on_cpu_) {
    mean_ = own_;
  } else {
    send_own();
  }
  static const TextNumber kLabel = number_of_label("DDP: which parameters have a gradient");
  const CallLabel label(kLabel);
  work_ = backend_.start_mean(mean_);
}

void PassReport::send_own() {
  read_.reset();
  const torch::NoGradGuard no_grad;
  if (!sent_.defined() || !torch::equal(sent_, own_)) {
    sent_.reset();  // until the copy has succeeded
    on_device_.copy_(own_);
    sent_ = own_.clone();
  }
  mean_.copy_(on_device_);
}

bool PassReport::anywhere(std::size_t i) {
  if (own_.const_data_ptr<float>()[i] != 0) return true;
  if (on_cpu_) return false;
  if (!read_.defined()) read_ = mean_.cpu();
  return read_.const_data_ptr<float>()[i] != 0;
}

}  // namespace lockstep::nn_detail
