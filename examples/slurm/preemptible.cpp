// A training that leaves in time: when Slurm takes its nodes away, all ranks stop at the same step, and rank 0 saves a
// checkpoint. The next start goes on from there, with the same bits as if nothing had happened. train.sbatch starts it:
//
//   sbatch --nodes 2 train.sbatch ./slurm_preemptible FOLDER [STEPS [MILLISECONDS]]
//
// FOLDER: for the checkpoints, seen by all nodes. MILLISECONDS: how long a step takes at least.
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

namespace checkpoint = lockstep::checkpoint;

namespace {

class Training {
 public:
  explicit Training(const std::string& folder) : manager_(folder) {
    // The highest step that every rank can read: a network file system may show a new file to one node later.
    const auto state = manager_.load_latest([](const auto& steps) { return lockstep::all_gather_object(steps); });
    if (!state) return;
    state->restore_model(*net_);
    state->restore_optimizer(optimizer_);
    step_ = static_cast<long>(state->step());
  }

  void run(long steps, std::chrono::milliseconds pause) {
    const auto watch = lockstep::launch::PreemptionWatch::start();
    TORCH_CHECK(watch.ok(), watch.status().message());
    say("begins", step_);
    for (; step_ < steps; ++step_) {
      const auto leave = watch.value()->should_leave(step_);
      TORCH_CHECK(leave.ok(), leave.status().message());
      if (leave.value()) break;
      take_step();
      std::this_thread::sleep_for(pause);
    }
    save();
    say(step_ < steps ? "leaves" : "is done", step_);
  }

 private:
  void take_step() {
    // The data of a step follow from its number, so they are the same after a new start.
    torch::manual_seed(static_cast<std::uint64_t>(step_ * lockstep::get_world_size() + lockstep::get_rank()));
    const torch::Tensor inputs = torch::randn({16, 8});
    const torch::Tensor targets = inputs.sum(1, /*keepdim=*/true) + torch::randn({16, 1});
    optimizer_.zero_grad();
    torch::mse_loss(ddp_->forward(inputs), targets).backward();
    optimizer_.step();
  }

  void save() {
    if (lockstep::get_rank() != 0) return;
    checkpoint::Checkpoint state;
    state.add_model(*net_);
    state.add_optimizer(optimizer_);
    manager_.save(step_, state);
  }

  void say(const char* what, long step) const {
    if (lockstep::get_rank() != 0) return;
    std::printf("%d ranks: the training %s at step %ld, first weight %.9g\n", lockstep::get_world_size(), what, step,
                net_->weight[0][0].item<double>());
    std::fflush(stdout);
  }

  checkpoint::CheckpointManager manager_;
  torch::nn::Linear net_ = torch::nn::Linear(8, 1);
  lockstep::DistributedDataParallel<torch::nn::Linear> ddp_ = lockstep::DistributedDataParallel(net_);
  torch::optim::SGD optimizer_ = torch::optim::SGD(net_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  long step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const lockstep::ProcessGroupGuard group;
    torch::manual_seed(1);
    Training training(argc > 1 ? argv[1] : "checkpoints");
    training.run(argc > 2 ? std::stol(argv[2]) : 1000, std::chrono::milliseconds(argc > 3 ? std::stol(argv[3]) : 0));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slurm_preemptible: %s\n", error.what());
    return 1;
  }
}
