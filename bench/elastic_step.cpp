// What ElasticTraining adds to a step in which nobody dies: elastic_step TURNS OUTPUT trains a perceptron of 5.8
// million parameters by ElasticTraining and by a loop by hand, some steps each in turn. Started by `lockstep run`.
#include <lockstep/core.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "step_models.h"
#include "turns.h"

namespace {

namespace bench = lockstep::bench;

constexpr std::int64_t kBatch = 16;  // samples of a micro-batch
constexpr std::int64_t kSteps = 15;  // of a turn

// The median time between the ends of two steps: how a run() begins and ends is not in it.
double time_of_step(const std::vector<double>& ends) {
  std::vector<double> seconds;
  for (std::size_t i = 1; i < ends.size(); ++i) seconds.push_back(ends[i] - ends[i - 1]);
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

bench::Turns measure(int turns) {
  torch::set_num_threads(1);
  torch::manual_seed(2);
  const lockstep::data::TensorDataset samples{torch::rand({4096, 1, 28, 28}), torch::randint(10, {4096})};
  bench::Mlp net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  lockstep::MicroBatchLoader loader(samples, {.batch_size = kBatch, .shuffle = true});
  lockstep::DistributedDataParallel<bench::Mlp> ddp(net);
  lockstep::ElasticTraining training({.seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);

  const auto loss = [&](const lockstep::MicroBatch& micro_batch) {
    lockstep::data::Example& batch = loader.next(micro_batch);
    return torch::cross_entropy_loss(ddp->forward(batch.data), batch.target);
  };
  const auto elastic = [&] {
    std::vector<double> ends;
    training.run(training.steps_done() + kSteps,
                 {.gradients = [&](lockstep::ElasticStep& step) { step.backward(ddp, loss); },
                  .update =
                      [&](std::int64_t) {
                        optimizer.step();
                        ends.push_back(bench::now());
                      }});
    return time_of_step(ends);
  };
  const auto by_hand = [&] {
    std::vector<double> ends;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss({step, lockstep::get_rank(), lockstep::get_world_size()}).backward();
      optimizer.step();
      ends.push_back(bench::now());
    }
    lockstep::barrier();
    return time_of_step(ends);
  };
  elastic();
  by_hand();
  return bench::take_turns(turns, elastic, by_hand);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) bench::die(argv[0], "expected the number of turns and a file for the times");
  const lockstep::ProcessGroupGuard world("lockstep", {.enable_reconfigure = true});
  const bench::Turns turns = measure(std::atoi(argv[1]));
  if (world.rank() == 0) bench::write_turns(argv[2], turns);
  return 0;
}
