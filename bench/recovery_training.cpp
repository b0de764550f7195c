// A training that outlives its ranks: recovery_training NEWCOMERS STEPS FOLDER trains a perceptron of 5.8 million
// parameters, with STEPS 0 until it is killed. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which rank it is; with
// a RANK of WORLD_SIZE or more it waits for the place of a dead one, at the file NEWCOMERS ("none": nobody waits).
// After each step that follows a start or a death (with STEPS after each) it adds a line to FOLDER/RANK: the time at
// which each part of the recovery had ended, the number of the step, and a hash of the weights.
#include <lockstep/core.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/hash_store.h>
#include <torch/torch.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "recovery_program.h"
#include "step_models.h"

namespace {

namespace bench = lockstep::bench;

constexpr std::int64_t kBatch = 16;  // samples of a micro-batch

// Seconds of the clock at which a part was done; 0: it was not needed on this rank.
struct Times {
  double noticed = 0, met = 0, has_state = 0, rebuilt = 0;
};

// FNV-1a of the words of all parameters.
std::uint64_t hash_of(const bench::Mlp& net) {
  std::uint64_t hash = 14695981039346656037U;
  for (const torch::Tensor& parameter : net->parameters()) {
    const auto* const words = static_cast<const std::uint32_t*>(parameter.const_data_ptr());
    for (std::int64_t i = 0; i < parameter.numel(); ++i) hash = (hash ^ words[i]) * 1099511628211U;
  }
  return hash;
}

void report(const std::string& folder, int number, const Times& times, std::int64_t step, const bench::Mlp& net) {
  const double done_at = bench::wall_clock();
  const std::string path = folder + "/" + std::to_string(number);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) bench::die(path, "cannot be written");
  std::fprintf(file,
               "{\"pid\": %d, \"ranks\": %d, \"noticed\": %.6f, \"met\": %.6f, \"has_state\": %.6f, \"rebuilt\": %.6f, "
               "\"done_at\": %.6f, \"step\": %lld, \"weights\": \"%016llx\"}\n",
               getpid(), lockstep::get_world_size(), times.noticed, times.met, times.has_state, times.rebuilt, done_at,
               static_cast<long long>(step), static_cast<unsigned long long>(hash_of(net)));
  std::fclose(file);
}

lockstep::data::TensorDataset samples() {
  torch::manual_seed(1);
  return {torch::rand({4096, 1, 28, 28}), torch::randint(10, {4096})};
}

// The first step of a process takes twice as long as the others. A newcomer makes one before it is needed, whose
// results the state of another rank replaces.
void warm_up(bench::Mlp& net, torch::optim::Optimizer& optimizer) {
  torch::cross_entropy_loss(net->forward(torch::rand({kBatch, 1, 28, 28})), torch::randint(10, {kBatch})).backward();
  optimizer.step();
  optimizer.zero_grad();
}

void train(const std::string& folder, const std::string& newcomers, std::int64_t steps) {
  const int number = std::atoi(std::getenv("RANK"));
  const bool is_newcomer = number >= std::atoi(std::getenv("WORLD_SIZE"));
  lockstep::InitOptions options{.enable_reconfigure = true};
  if (is_newcomer) {
    options.rank = 0;
    options.world_size = 1;
    options.store = std::make_shared<lockstep::comm::HashStore>();
  }
  torch::set_num_threads(1);
  const lockstep::ProcessGroupGuard world("", options);
  torch::manual_seed(2);
  bench::Mlp net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  lockstep::MicroBatchLoader loader(samples(), {.batch_size = kBatch, .shuffle = true});
  std::optional<lockstep::DistributedDataParallel<bench::Mlp>> ddp;
  Times times;
  bool report_is_due = false;
  lockstep::ElasticOptions elastic;
  elastic.rebuild = [&] {
    times.has_state = bench::wall_clock();
    ddp.emplace(net, lockstep::DistributedDataParallelOptions{.init_sync = false});
    times.rebuilt = bench::wall_clock();
    report_is_due = true;
  };
  elastic.seed = 1;
  if (newcomers != "none") {
    elastic.newcomers = lockstep::comm::FileStore::open(newcomers).value();
    elastic.newcomer_timeout = std::chrono::seconds(60);
  }
  lockstep::ElasticTraining training(elastic);
  training.add_state([&](lockstep::checkpoint::Checkpoint&) { times.met = bench::wall_clock(); },
                     [](const lockstep::checkpoint::Checkpoint&) {});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);
  if (is_newcomer) {
    warm_up(net, optimizer);
    bench::report_start(folder, number, 1);
    if (!training.join()) return;
  }
  training.run(steps > 0 ? steps : 1'000'000,
               {.gradients =
                    [&](lockstep::ElasticStep& step) {
                      try {
                        step.backward(*ddp, [&](const lockstep::MicroBatch& micro_batch) {
                          lockstep::data::Example& batch = loader.next(micro_batch);
                          return torch::cross_entropy_loss((*ddp)->forward(batch.data), batch.target);
                        });
                      } catch (const std::exception&) {
                        times = {.noticed = bench::wall_clock()};
                        throw;
                      }
                    },
                .update =
                    [&](std::int64_t step) {
                      optimizer.step();
                      if (std::exchange(report_is_due, steps > 0)) report(folder, number, times, step, net);
                    }});
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) bench::die(argv[0], "expected the newcomers' file (or none), steps (or 0) and a folder for reports");
  train(argv[3], argv[1], std::atoll(argv[2]));
} catch (const std::exception& error) {
  lockstep::bench::die(argv[0], error.what());
}
