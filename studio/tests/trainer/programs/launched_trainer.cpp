// Two Trainers for `lockstep run --newcomers`: launched_trainer FOLDER STEP. Rank 1 dies in this step of the first one
// (0: never). Rank r writes its parameters and buffers, as bytes, to FOLDER/values.N.r after Trainer N (0, 1).
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "../small_training.h"
#include "lockstep/launch/newcomer.h"

namespace {

using lockstep::test::Training;

void write_values(const Training& training, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& tensors : {training.net->parameters(), training.net->buffers()}) {
    for (const torch::Tensor& tensor : tensors)
      file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  }
}

void train(const std::string& folder, std::int64_t last_step) {
  const lockstep::ProcessGroupGuard world("", {.timeout = std::chrono::seconds(60), .enable_reconfigure = true});
  const bool dies = world.rank() == 1;  // a newcomer begins as rank 0
  for (const char* number : {"0", "1"}) {
    lockstep::TrainerOptions options{.epochs = 2, .checkpoint_dir = folder + "/checkpoints." + number};
    options.elastic.emplace();
    options.callbacks.on_step_end = [&](const lockstep::StepReport& step) {
      if (dies && *number == '0' && step.step == last_step) raise(SIGKILL);
    };
    Training training(options);
    if (training.fit().end == lockstep::TrainingEnd::kNotNeeded) return;
    write_values(training, folder + "/values." + number + "." + std::to_string(lockstep::get_rank()));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 64;
  train(argv[1], std::atoll(argv[2]));
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
