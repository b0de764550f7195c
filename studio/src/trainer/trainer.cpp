#include "lockstep/trainer/trainer.h"

#include <cmath>

#include "lockstep/c10d/process_groups.h"
#include "loop.h"

namespace lockstep {

std::vector<std::pair<std::string, double>> EpochReport::seconds_by_part(int world_size) const {
  const double rest = seconds - input_seconds;
  if (world_size == 1) return {{"input", input_seconds}, {"compute", rest}};
  if (!std::isfinite(communication_seconds)) return {{"input", input_seconds}, {"compute and communication", rest}};
  return {
      {"input", input_seconds}, {"compute", rest - communication_seconds}, {"communication", communication_seconds}};
}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer, TrainerOptions options) {
  TORCH_CHECK(is_initialized(),
              "Trainer: there is no world; make a lockstep::ProcessGroupGuard before it (a program "
              "that was started alone is a world of one rank)");
  loop_ = std::make_unique<Loop>(std::move(model), optimizer, std::move(options));
}
Trainer::~Trainer() = default;

TrainingResult Trainer::fit_feeds(trainer_detail::Feed& train, trainer_detail::Feed* evaluation) {
  return loop_->fit(train, evaluation);
}
Evaluation Trainer::evaluate_feed(trainer_detail::Feed& feed) {
  return loop_->evaluate(feed);
}
bool Trainer::load_best() {
  return loop_->load_best();
}
void Trainer::stop() noexcept {
  loop_->stop();
}
std::int64_t Trainer::epoch() const {
  return loop_->progress().epoch;
}
std::int64_t Trainer::step() const {
  return loop_->progress().step;
}
torch::Device Trainer::device() const {
  return loop_->device();
}

}  // namespace lockstep
