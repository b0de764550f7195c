// A training with dropout, batch normalisation and momentum that runs its steps one micro-batch after another in one
// process, or on ranks that die where a plan says so.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/elastic/elastic_training.h"
#include "lockstep/elastic/micro_batch_loader.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "lockstep/store/hash_store.h"
#include "support/forked.h"
#include "support/process_ranks.h"

namespace lockstep::test {

inline const InitOptions kElasticWorld{.timeout = std::chrono::seconds(60), .enable_reconfigure = true};

// A newcomer starts in a world of its own.
inline InitOptions world_of_one() {
  return {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
}

// Where a process starts: rank `number` in the world of `world` ranks with this store file, or a newcomer.
inline InitOptions elastic_world(const std::string& store, int number, int world, bool is_newcomer) {
  if (is_newcomer) return world_of_one();
  InitOptions options = kElasticWorld;
  options.init_method = "file://" + store;
  options.rank = number;
  options.world_size = world;
  return options;
}

// Where in a step a rank dies, or is frozen.
enum class Place {
  kForward,
  kBackward,       // when some gradients are on their way, and others are not computed
  kAfterBackward,  // the others have all that they need
  kUpdate,
  kAfterStep,
  kRebuild,  // when the world is formed anew after an earlier death
  kAnyTime,  // some time after it has begun the step: `delay`
  kSends,    // when it sends its state to a rank that needs it, after an earlier death
  kTakes,    // when it has got the first part of that state
};
inline constexpr int kPlaces = 5;  // those in a step

struct Death {
  int number = 0;  // the rank at the start
  std::int64_t step = 0;
  Place place = Place::kForward;
  std::chrono::microseconds delay{0};
  std::chrono::milliseconds frozen{0};  // the rank does not die, but stands still so long
};

// The kernel's timer resumes the process: none of its own threads could.
inline void stand_still(std::chrono::milliseconds time) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  timer_t timer{};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) throw std::runtime_error("no timer");
  const itimerspec when{{}, {time.count() / 1000, time.count() % 1000 * 1'000'000}};
  if (timer_settime(timer, 0, &when, nullptr) != 0) throw std::runtime_error("no timer");
  raise(SIGSTOP);
  timer_delete(timer);
}

// How many plans a test of random deaths runs for each world.
inline unsigned random_plans() {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_SOAK");
  return wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 1;
}
inline Death random_death(int number, std::mt19937& random) {
  const auto step = static_cast<std::int64_t>(random() % 11);
  const auto place = random() % (kPlaces + 2);
  const std::chrono::microseconds delay(random() % 4000);
  return {number, step, place < kPlaces ? static_cast<Place>(place) : Place::kAnyTime, delay};
}

struct TestNet : torch::nn::Module {
  explicit TestNet(bool with_batch_norm) {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, 8));
    if (with_batch_norm) norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 3));
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    if (on_backward) x.register_hook([this](const torch::Tensor&) { on_backward(); });
    if (!norm.is_empty()) x = norm(x);
    return last(torch::dropout(torch::relu(x), 0.25, is_training()));
  }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  std::function<void()> on_backward;
};

struct Program {
  int micro_batches = 4;
  std::int64_t steps = 12;
  std::int64_t first_run = 0;  // the steps of a run() before that of all steps; 0: none
  bool with_batch_norm = false;
  bool adam = false;
  int copies = 0;  // of a sharded optimizer; 0: a plain one
  int min_ranks = 1;
  std::vector<Death> deaths = {};
  std::shared_ptr<comm::Store> newcomers = nullptr;
  std::chrono::milliseconds newcomer_timeout{0};

  std::shared_ptr<TestNet> net = nullptr;
  std::unique_ptr<torch::optim::Optimizer> optimizer = nullptr;
  std::unique_ptr<optim::LRScheduler> scheduler = nullptr;
  std::optional<MicroBatchLoader<data::Example>> loader = {};
  std::int64_t own_count = 0;
  // Before a step's update, and in after_step.
  std::function<void(std::int64_t)> before_update = [](std::int64_t) {};
  std::function<void(std::int64_t)> in_update = [](std::int64_t) {};
  // Told of "died", "frozen", "error" with its text, "rebuilt" and "step".
  std::function<void(const std::string&)> tell = [](const std::string&) {};
  // Before run(), when a rank sends its state, when a rank gets one, before and after rebuild makes the wrapper, and at
  // the end of the last after_step of the first run().
  std::function<void()> before_run = [] {}, in_save = [] {}, in_restore = [] {}, in_rebuild = [] {}, rebuilt = [] {},
                        at_end = [] {};

  void make() {
    net = std::make_shared<TestNet>(with_batch_norm);
    if (adam) {
      make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(0.02));
    } else {
      make_optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
    }
    scheduler = std::make_unique<optim::ExponentialLR>(*optimizer, 0.97);
    torch::manual_seed(6);
    const auto options = torch::dtype(torch::kDouble);
    const torch::Tensor x = torch::randn({50, 6}, options);
    data::TensorDataset dataset(x, x.sum(1, true) + torch::randn({50, 3}, options));
    loader.emplace(dataset,
                   data::DataLoaderOptions{.batch_size = 2, .shuffle = true, .seed = 3, .drop_last = with_batch_norm});
  }

  template <typename Kind, typename Options>
  void make_optimizer(const Options& options) {
    if (copies == 0) {
      optimizer = std::make_unique<Kind>(net->parameters(), options);
    } else {
      optimizer = std::make_unique<ZeroRedundancyOptimizer<Kind>>(
          net->parameters(), options, ZeroRedundancyOptions{.bucket_cap_mb = 1e-4, .copies = copies});
    }
  }

  void update(std::int64_t step) {
    in_update(step);
    optimizer->step();
    scheduler->step();
    ++own_count;
  }

  torch::Tensor weights() const {
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().reshape(-1));
    return torch::cat(all).clone();
  }
};

inline torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& target) {
  return torch::mse_loss(scores, target);
}

// The weights after all steps, without groups or deaths.
inline torch::Tensor reference_weights(Program program) {
  struct Alone {
    NoSyncGuard no_sync(bool) { return NoSyncGuard(nullptr); }
  };
  program.make();
  Alone alone;
  for (std::int64_t step = 0; step < program.steps; ++step) {
    program.optimizer->zero_grad();
    const ElasticStep one(step, 0, 1, program.micro_batches, 1);
    one.backward(alone, [&](const MicroBatch& micro_batch) {
      data::Example& batch = program.loader->next(micro_batch);
      return loss_of(program.net->forward(batch.data), batch.target);
    });
    program.update(step);
  }
  return program.weights();
}

// Trains until the end or the death of process `number`. `is_newcomer`: it waits for a dead rank's place. Returns how
// often the world was formed anew; -1: it was not needed.
inline int train(Program& program, int number, bool is_newcomer = false) {
  program.make();
  const auto die_in = [&](std::int64_t step, Place place) {
    for (const Death& one : program.deaths) {
      if (one.number != number || one.step != step || one.place != place) continue;
      program.tell(one.frozen.count() > 0 ? "frozen" : "died");
      one.frozen.count() > 0 ? stand_still(one.frozen) : static_cast<void>(raise(SIGKILL));
    }
  };
  bool dies = false;
  const auto begin_to_die = [&](std::int64_t step) {
    for (const Death& one : program.deaths) {
      if (one.number != number || one.place != Place::kAnyTime) continue;
      if (step >= one.step && !std::exchange(dies, true)) {
        std::thread([delay = one.delay, tell = program.tell] {
          std::this_thread::sleep_for(delay);
          tell("died");
          raise(SIGKILL);
        }).detach();
      }
      if (step == program.steps - 1) pause();
    }
  };
  std::optional<DistributedDataParallel<std::shared_ptr<TestNet>>> ddp;
  std::optional<ElasticTraining> training;
  const auto die_in_recovery = [&](Place place) {
    if (training->recoveries() > 0 || is_newcomer) die_in(0, place);
  };
  training.emplace(ElasticOptions{.rebuild =
                                      [&] {
                                        die_in_recovery(Place::kRebuild);
                                        program.in_rebuild();
                                        ddp.emplace(program.net, DistributedDataParallelOptions{.bucket_cap_mb = 1e-4});
                                        program.rebuilt();
                                        program.tell("rebuilt");
                                      },
                                  .min_ranks = program.min_ranks,
                                  .micro_batches = program.micro_batches,
                                  .seed = 1,
                                  .newcomers = program.newcomers,
                                  .newcomer_timeout = program.newcomer_timeout});
  training->add_model(*program.net);
  training->add_optimizer(*program.optimizer);
  training->add_scheduler(*program.scheduler);
  training->add_loader(*program.loader);
  training->add_state(
      [&](checkpoint::Checkpoint& state) {
        program.in_save();
        die_in_recovery(Place::kSends);
        state.set("own", program.own_count);
      },
      [&](const checkpoint::Checkpoint& state) {
        program.in_restore();
        die_in_recovery(Place::kTakes);
        program.own_count = state.get_int("own");
      });
  if (is_newcomer && !training->join()) return -1;
  const auto telling = [&](const auto& part) {
    try {
      part();
    } catch (const std::exception& error) {
      program.tell(std::string("error ") + error.what());
      throw;
    }
  };
  program.before_run();
  std::vector<std::int64_t> ends{program.steps};
  if (program.first_run > 0) ends.insert(ends.begin(), program.first_run);
  const ElasticFunctions functions{.gradients =
                                       [&](ElasticStep& step) {
                                         die_in(step.number(), Place::kForward);
                                         begin_to_die(step.number());
                                         program.net->on_backward = [&] { die_in(step.number(), Place::kBackward); };
                                         telling([&] {
                                           step.backward(*ddp, [&](const MicroBatch& micro_batch) {
                                             data::Example& batch = program.loader->next(micro_batch);
                                             return loss_of((*ddp)->forward(batch.data), batch.target);
                                           });
                                         });
                                         die_in(step.number(), Place::kAfterBackward);
                                         program.before_update(step.number());
                                       },
                                   .update =
                                       [&](std::int64_t step) {
                                         die_in(step, Place::kUpdate);
                                         program.update(step);
                                       },
                                   .after_step =
                                       [&](std::int64_t done) {
                                         die_in(done - 1, Place::kAfterStep);
                                         const torch::Tensor sum = torch::ones({1});
                                         telling([&] { all_reduce(sum); });
                                         program.tell("step");
                                         EXPECT_EQ(sum.item<float>(), static_cast<float>(get_world_size()));
                                         EXPECT_EQ(program.own_count, done);
                                         if (done == ends.front()) program.at_end();
                                       }};
  for (const std::int64_t end : ends) training->run(end, functions);
  EXPECT_EQ(training->steps_done(), program.steps);
  EXPECT_EQ(program.own_count, program.steps);
  return training->recoveries();
}

// All that are left have the same weights, bit for bit, and those of one process up to the order of sums.
inline void expect_weights(const Program& program, int left) {
  EXPECT_EQ(get_world_size(), left);
  const torch::Tensor weights = program.weights();
  for (const torch::Tensor& other : all_gather_object(weights)) EXPECT_TRUE(torch::equal(weights, other));
  if (program.with_batch_norm) return;  // rank 0's running means
  const torch::Tensor expected =
      reference_weights({.micro_batches = program.micro_batches, .steps = program.steps, .adam = program.adam});
  EXPECT_TRUE(torch::allclose(weights, expected, 1e-9, 1e-11)) << (weights - expected).abs().max().item<double>();
}

// Runs the program on `world` ranks, of which as many as the plan says die.
inline void train_and_die(int world, const Program& program) {
  run_processes(world, [&](int rank) {
    run_mortal([&] {
      Program mine{.micro_batches = program.micro_batches,
                   .steps = program.steps,
                   .with_batch_norm = program.with_batch_norm,
                   .adam = program.adam,
                   .copies = program.copies,
                   .deaths = program.deaths};
      const ProcessGroupGuard guard("", kElasticWorld);
      train(mine, rank);
      expect_weights(mine, world - static_cast<int>(program.deaths.size()));
    });
  });
}

}  // namespace lockstep::test
