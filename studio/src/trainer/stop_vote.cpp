#include "stop_vote.h"

#include <algorithm>
#include <utility>

#include "nn/all_ranks.h"
#include "nn/device_backend.h"

namespace lockstep::trainer_detail {

StopVote::Exchange StopVote::begin(int mine) {
  const auto backend = nn_detail::DeviceBackend::for_host_data(nullptr, local_device());
  Exchange exchange{torch::tensor({mine, -mine}, torch::kInt).to(backend.device()), nullptr};
  exchange.work = backend.start_max(exchange.reasons);
  return exchange;
}

StopVote::Reasons StopVote::end(Exchange& exchange) {
  if (exchange.work) std::exchange(exchange.work, nullptr)->wait();
  const torch::Tensor reasons = exchange.reasons.cpu();
  return {-reasons[1].item<int>(), reasons[0].item<int>()};
}

int StopVote::agree(int mine) {
  Exchange exchange = begin(mine);
  return end(exchange).greatest;
}

int StopVote::earlier() {
  std::optional<Exchange> begun = std::exchange(begun_, std::nullopt);
  return begun ? end(*begun).greatest : 0;
}

int StopVote::after_step(int mine) {
  if (!nn_detail::has_other_ranks(nullptr)) return mine;
  if (const int before = earlier(); before != 0) return std::max(before, agree(mine));
  begun_ = begin(mine);
  if (mine == 0) return 0;
  const Reasons reasons = end(*begun_);
  if (reasons.least == 0) return 0;  // a rank that was not asked goes on, so all do
  begun_.reset();
  return reasons.greatest;
}

int StopVote::now(int mine) {
  if (!nn_detail::has_other_ranks(nullptr)) return mine;
  return std::max(earlier(), agree(mine));
}

}  // namespace lockstep::trainer_detail
