// What ranks compare when a training begins, and the state that a rank gets from another one.
#include "elastic/program.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

const ElasticFunctions kNothing{.gradients = [](ElasticStep&) {}, .update = [](std::int64_t) {}};

// Runs a training in which rank 1 has `other`, and expects the same error on all ranks.
void expect_difference(const std::function<void(ElasticOptions&, std::vector<torch::nn::Linear>&, bool other)>& choose,
                       const std::vector<std::string>& texts) {
  torch::nn::Linear first(2, 2);
  std::vector<torch::nn::Linear> models{first};
  ElasticOptions options{.micro_batches = 4, .seed = 1};
  choose(options, models, get_rank() == 1);
  ElasticTraining training(options);
  for (torch::nn::Linear& model : models) training.add_model(*model);
  try {
    training.run(2, kNothing);
    ADD_FAILURE() << "no error: " << texts.front();
  } catch (const c10::ValueError& error) {
    for (const std::string& text : texts)
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(ElasticAgreementMulti, ADifferenceIsAnErrorOnAllRanksThatNamesIt) {
  for (int world = 2; world <= 4; ++world) {
    run_processes(world, [](int) {
      const ProcessGroupGuard guard("", kElasticWorld);
      expect_difference([](auto& options, auto&, bool other) { options.seed = other ? 2 : 1; },
                        {"seed: 2 on rank(s) 1", "seed: 1 on rank(s) 0"});
      expect_difference([](auto& options, auto&, bool other) { options.micro_batches = other ? 0 : 4; },
                        {"micro_batches: one for each rank on rank(s) 1", "micro_batches: 4 on rank(s) 0"});
      expect_difference([](auto& options, auto&, bool other) { options.min_ranks = other ? 2 : 1; },
                        {"min_ranks: 2 on rank(s) 1"});
      expect_difference(
          [](auto& options, auto&, bool other) {
            if (!other) options.newcomers = std::make_shared<comm::HashStore>();
          },
          {"newcomers: none on rank(s) 1"});
      expect_difference(
          [](auto&, auto& models, bool other) {
            if (other) models.push_back(torch::nn::Linear(2, 2));
          },
          {"added states: 2 on rank(s) 1"});
      expect_difference(
          [](auto&, auto& models, bool other) {
            if (other) models[0] = torch::nn::Linear(2, 3);
          },
          {"state 0, weight: Float [3, 2] on rank(s) 1", "state 0, weight: Float [2, 2] on rank(s) 0"});
      const torch::Tensor sum = torch::ones({1});
      all_reduce(sum);  // the world is as before
    });
  }
}

// A loader whose cursor cannot be asked on rank 1.
struct BrokenLoader {
  data::SamplerState state() const {
    if (get_rank() == 1) throw std::out_of_range("no cursor");
    return {};
  }
  void load_state(const data::SamplerState& /*state*/) {}
};

TEST(ElasticAgreementMulti, AnErrorBeforeTheComparisonIsAnErrorOnAllRanks) {
  for (int world = 2; world <= 4; ++world) {
    run_processes(world, [](int rank) {
      const ProcessGroupGuard guard("", kElasticWorld);
      BrokenLoader loader;
      ElasticTraining training({});
      training.add_loader(loader);
      try {
        training.run(2, kNothing);
        ADD_FAILURE() << "no error";
      } catch (const std::exception& error) {
        const std::string expected = rank == 1 ? "no cursor" : "rank(s) 1 cannot take part: no cursor";
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      }
      const torch::Tensor sum = torch::ones({1});
      all_reduce(sum);  // the world is as before
    });
  }
}

// Parameters of several dtypes and layouts, tied ones, buffers, small and large.
struct VariousNet : torch::nn::Module {
  VariousNet() {
    torch::manual_seed(9);
    add("half", torch::randn({90, 100}, torch::kBFloat16));
    add("double", torch::randn({3}, torch::kDouble));
    add("channels_last", torch::randn({8, 16, 9, 9}).contiguous(torch::MemoryFormat::ChannelsLast));
    add("strided", torch::randn({100, 200}).narrow(1, 0, 100));
    add("empty", torch::randn({0, 4}));
    first = register_module("first", torch::nn::Linear(80, 80));
    second = register_module("second", torch::nn::Linear(80, 80));
    second->weight.set_data(first->weight.data());
    register_module("same", first);
    register_buffer("count", torch::zeros({}, torch::kLong));
    register_buffer("flags", torch::zeros({20000}, torch::kBool));
  }
  void add(const std::string& name, const torch::Tensor& value) { register_parameter(name, value); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

std::vector<torch::Tensor> all_of(const torch::nn::Module& net) {
  std::vector<torch::Tensor> all;
  for (const auto& entry : checkpoint::state_dict(net)) all.push_back(entry->detach().clone());
  return all;
}

// In the first step rank 0 alone gets as far as its update, so rank 1 has no state of the optimizer yet.
template <typename Optimizer, typename Options>
void expect_same_state(const Options& options) {
  auto net = std::make_shared<VariousNet>();
  Optimizer optimizer(net->parameters(), options);
  bool fails = true;
  ElasticTraining training({.seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  const ElasticFunctions functions{.gradients =
                                       [&](ElasticStep&) {
                                         for (torch::Tensor& parameter : net->parameters())
                                           parameter.mutable_grad() = torch::ones_like(parameter);
                                         if (get_rank() != 0 && std::exchange(fails, false))
                                           throw std::out_of_range("of the program");
                                       },
                                   .update =
                                       [&](std::int64_t) {
                                         optimizer.step();
                                         net->named_buffers()["count"] += 1;
                                         net->named_buffers()["flags"].fill_(true);
                                       },
                                   .after_step =
                                       [&](std::int64_t) {
                                         if (get_rank() == 0 && std::exchange(fails, false))
                                           throw std::out_of_range("of the program");
                                       }};
  const torch::Tensor tied = net->second->weight;
  EXPECT_THROW(training.run(1, functions), std::out_of_range);
  training.run(1, functions);  // gets the state, and makes no step
  EXPECT_EQ(tied.const_data_ptr(), net->first->weight.const_data_ptr());
  const std::vector<torch::Tensor> mine = all_of(*net);
  checkpoint::Checkpoint state;
  state.add_optimizer(optimizer);
  const std::map<std::string, torch::Tensor> of_optimizer = state.content().tensors;
  EXPECT_FALSE(of_optimizer.empty());
  for (const auto& others : all_gather_object(std::pair(mine, of_optimizer))) {
    for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], others.first.at(i))) << i;
    for (const auto& [name, tensor] : of_optimizer) {
      EXPECT_TRUE(torch::equal(tensor, others.second.at(name))) << name;
      EXPECT_EQ(tensor.scalar_type(), others.second.at(name).scalar_type()) << name;
    }
  }
  EXPECT_TRUE(net->named_buffers()["flags"].all().template item<bool>());
  training.run(3, functions);
  for (const auto& others : all_gather_object(all_of(*net))) {
    const std::vector<torch::Tensor> now = all_of(*net);
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(torch::equal(now[i], others.at(i))) << i;
  }
}

TEST(ElasticAgreementMulti, ARankThatIsBehindGetsEveryKindOfTensor) {
  run_processes(3, [](int) {
    const ProcessGroupGuard guard("", kElasticWorld);
    expect_same_state<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
    expect_same_state<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
  });
}

// Two ranks that end by an exception of their own, without telling anybody else, and one newcomer that waits.
TEST(ElasticAgreementMulti, ANewcomerLearnsThatAllRanksHaveFailed) {
  const SharedScratchFolder folder;
  run_processes(3, [&](int number) {
    const bool is_newcomer = number == 2;
    Program mine{.micro_batches = 2, .newcomers = comm::FileStore::open(folder.path("waiting")).value()};
    mine.before_update = [](std::int64_t step) {
      if (step == 1) throw std::out_of_range("of the program");
    };
    InitOptions options = kElasticWorld;
    options.init_method = "file://" + folder.path("store");
    options.rank = number;
    options.world_size = 2;
    if (is_newcomer) options = {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
    init_process_group("", options);
    if (is_newcomer) {
      EXPECT_EQ(train(mine, number, true), -1);
    } else {
      EXPECT_THROW(train(mine, number), std::out_of_range);
    }
    destroy_process_group();
  });
}

}  // namespace
}  // namespace lockstep::test
