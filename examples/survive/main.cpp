// Training that outlives its ranks: four ranks train, and two of them kill themselves on the way. Processes that wait
// for that take their places, the failed step is done again, and all reach the weights of a training without a death,
// bit for bit. The program starts its own ranks, because a launcher would end them all. Run it without arguments.
#include <lockstep/core.h>
#include <lockstep/store/file_store.h>
#include <lockstep/store/hash_store.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace {

constexpr int kRanks = 4;
constexpr int kNewcomers = 2;
constexpr int kSteps = 200;

// A step, and which of the processes kills itself in it.
struct Death {
  std::int64_t step;
  int number;
};
constexpr Death kDeaths[] = {{60, 0}, {130, 2}};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::dropout(torch::relu(first(x)), 0.2, is_training()));
  }
  torch::nn::Linear first{16, 64}, last{64, 4};
};
TORCH_MODULE(Net);

lockstep::data::TensorDataset make_samples() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({1000, 16});
  return {x, x.mm(torch::randn({16, 4})).argmax(1)};
}

// One process's program. `number` is its rank at the start; from kRanks on it is a newcomer, which is in a world of its
// own until it takes the place of a rank.
void run(int number, bool deaths, const std::string& folder) {
  torch::set_num_threads(1);  // a launcher would divide the cores among the ranks
  const bool is_newcomer = number >= kRanks;
  lockstep::InitOptions options{
      .init_method = "file://" + folder + "/store", .rank = number, .world_size = kRanks, .enable_reconfigure = true};
  if (is_newcomer) options = {.rank = 0, .world_size = 1, .store = std::make_shared<lockstep::comm::HashStore>()};
  const lockstep::ProcessGroupGuard world("", options);
  lockstep::MicroBatchLoader loader(make_samples(), {.batch_size = 8, .shuffle = true});
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::optional<lockstep::DistributedDataParallel<Net>> ddp;

  lockstep::ElasticTraining training({.rebuild = [&] { ddp.emplace(net); },
                                      .seed = 1,
                                      .newcomers = lockstep::comm::FileStore::open(folder + "/newcomers").value(),
                                      .newcomer_timeout = std::chrono::seconds(20)});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);
  if (is_newcomer && !training.join()) return;  // it was not needed
  training.run(kSteps, {.gradients =
                            [&](lockstep::ElasticStep& step) {
                              step.backward(*ddp, [&](const lockstep::MicroBatch& micro_batch) {
                                lockstep::data::Example& batch = loader.next(micro_batch);
                                return torch::cross_entropy_loss((*ddp)->forward(batch.data), batch.target);
                              });
                              for (const Death& death : kDeaths) {
                                if (deaths && step.number() == death.step && number == death.number) raise(SIGKILL);
                              }
                            },
                        .update = [&](std::int64_t) { optimizer.step(); }});
  if (lockstep::get_rank() == 0) torch::save(net, folder + "/weights.pt");
}

// Starts the ranks and waits for them. Returns the weights at the end.
torch::Tensor train(bool deaths) {
  const std::string folder = std::filesystem::temp_directory_path() / ("survive-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  for (int number = 0; number < kRanks + kNewcomers; ++number) {
    if (fork() != 0) continue;
    int failed = 0;
    try {
      run(number, deaths, folder);
    } catch (const std::exception& error) {
      std::cerr << "process " << number << ": " << error.what() << std::endl;
      failed = 1;
    }
    _exit(failed);
  }
  int killed = 0, failed = 0, status = 0;
  while (wait(&status) > 0) {
    killed += WIFSIGNALED(status) ? 1 : 0;
    failed += WIFEXITED(status) && WEXITSTATUS(status) != 0 ? 1 : 0;
  }
  std::cout << kSteps << " steps: " << killed << " ranks were killed, and " << failed << " have failed" << std::endl;
  Net net;
  torch::load(net, folder + "/weights.pt");
  std::filesystem::remove_all(folder);
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

}  // namespace

int main() {
  const torch::Tensor quiet = train(/*deaths=*/false);
  const torch::Tensor survived = train(/*deaths=*/true);
  const bool same = torch::equal(quiet, survived);
  std::cout << "The weights have the same bits: " << (same ? "yes" : "no") << std::endl;
  return same ? 0 : 1;
}
