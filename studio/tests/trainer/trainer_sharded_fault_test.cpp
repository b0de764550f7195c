// A Trainer with a sharded optimizer whose ranks die and are replaced.
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "small_training.h"
#include "support/forked.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

constexpr int kWorld = 3;

// Trains in the present world. `dies`: in the forward pass of step 6. Returns the parameters; nothing: not needed.
std::vector<torch::Tensor> fit(torch::optim::Optimizer& optimizer, Net net, TrainerOptions options, bool dies) {
  data::DataLoader train(Sines(60), {.batch_size = 4, .shuffle = true, .seed = 3});
  Trainer trainer(net, optimizer, std::move(options));
  const TrainingResult result = trainer.fit(train, [&](data::Example& batch) {
    if (dies && trainer.step() == 5) raise(SIGKILL);
    const torch::Tensor scores = net->forward(batch.data);
    return StepOutput{torch::nn::functional::cross_entropy(scores, batch.target), scores};
  });
  if (result.end == TrainingEnd::kNotNeeded) return {};
  EXPECT_EQ(result.end, TrainingEnd::kFinished);
  return net->parameters();
}

TrainerOptions options_with(const std::string& waiting, bool is_newcomer) {
  TrainerOptions options{.epochs = 3, .clip_grad_norm = 0.5, .ema_decay = 0.9};
  options.fused = false;  // as the sharded optimizer is by default
  options.elastic.emplace();
  options.elastic->newcomers = comm::FileStore::open(waiting).value();
  options.elastic->newcomer_timeout = std::chrono::seconds(60);
  options.newcomer = is_newcomer;
  return options;
}

InitOptions world_of(const std::string& store, int number) {
  if (number >= kWorld) return {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
  return {.init_method = "file://" + store,
          .rank = number,
          .world_size = kWorld,
          .timeout = std::chrono::seconds(90),
          .enable_reconfigure = true};
}

// The parameters are those of the plain optimizer without a death.
TEST(TrainerShardedFault, ANewcomerTakesTheShareOfARank) {
  const SharedScratchFolder folder;
  run_processes(kWorld, [&](int number) {
    const ProcessGroupGuard guard("", world_of(folder.path("quiet"), number));
    Net net = make_net();
    torch::optim::Adam plain(net->parameters(), torch::optim::AdamOptions(0.01));
    const auto quiet = fit(plain, net, options_with(folder.path("nobody"), false), /*dies=*/false);
    if (number == 0) torch::save(quiet, folder.path("parameters"));
  });
  run_processes(kWorld + 1, [&](int number) {
    run_mortal([&] {
      const ProcessGroupGuard guard("", world_of(folder.path("deadly"), number));
      Net net = make_net();
      ZeroRedundancyOptimizer<torch::optim::Adam> sharded(net->parameters(), torch::optim::AdamOptions(0.01),
                                                          {.copies = 2});
      const auto found =
          fit(sharded, net, options_with(folder.path("waiting"), number >= kWorld), /*dies=*/number == 1);
      std::vector<torch::Tensor> quiet;
      torch::load(quiet, folder.path("parameters"));
      ASSERT_EQ(found.size(), quiet.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], quiet[i])) << i;
    });
  });
}

}  // namespace
}  // namespace lockstep::test
