// A training for `lockstep run`: launched_training FOLDER TIMEOUT [EVENT ...]. TIMEOUT: the world's, in seconds. Rank r
// writes all its weights, as bytes, to FOLDER/weights.r at its end, and "pid\n" to FOLDER/pid.r when it begins.
//
// An event is WHERE:RANK:LIFE:WHAT. WHERE: the number of a step; `start`: before the world is made; `join`: before a
// newcomer joins; `end`: after the training; `left`: after the world is left. LIFE 0 is the worker of the start, 1 the
// first newcomer for this rank, and so on. WHAT: `kill`, `stop` (frozen), `throw`, an exit code; `time` writes the
// time, as `kill` does. The event `twice`: two trainings, one after the other, in the same world.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/elastic/elastic_training.h"
#include "lockstep/elastic/micro_batch_loader.h"
#include "lockstep/launch/newcomer.h"
#include "lockstep/nn/distributed_data_parallel.h"

namespace {

constexpr int kSteps = 40;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::dropout(torch::relu(norm(first(x))), 0.25, is_training()));
  }
  torch::nn::Linear first{6, 8}, last{8, 3};
  torch::nn::BatchNorm1d norm{8};
};
TORCH_MODULE(Net);

int own_rank() {
  const auto replaced = lockstep::launch::replaced_rank().value();
  const char* const rank = std::getenv("RANK");
  return replaced ? *replaced : rank == nullptr ? 0 : std::atoi(rank);
}

// Adds a line for this process, and returns how many there were.
int count_lives(const std::string& path) {
  std::ofstream(path, std::ios::app) << getpid() << std::endl;
  std::ifstream file(path);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(file), {}, '\n')) - 1;
}

struct Events {
  std::vector<std::string> all;
  std::string mine;  // ":RANK:LIFE:"

  bool are(const std::string& event) const { return std::find(all.begin(), all.end(), event) != all.end(); }
  void happen(const std::string& where) const {
    for (const std::string& event : all) {
      if (event.rfind(where + mine, 0) != 0) continue;
      const std::string what = event.substr(where.size() + mine.size());
      const std::chrono::duration<double, std::milli> now = std::chrono::steady_clock::now().time_since_epoch();
      if (what == "kill" || what == "time")
        std::cout << std::fixed << where << " at " << now.count() << " ms" << std::endl;
      if (what == "kill") raise(SIGKILL);
      if (what == "stop") raise(SIGSTOP);
      if (what == "throw") throw std::runtime_error("the program's own error");
      if (what[0] >= '0' && what[0] <= '9') _exit(std::stoi(what));
    }
  }
};

lockstep::data::TensorDataset make_samples() {
  torch::manual_seed(6);
  const torch::Tensor x = torch::randn({96, 6});
  return {x, x.sum(1, true) + torch::randn({96, 3})};
}

// False: the process was a newcomer that was not needed.
bool train_once(Net& net, const Events& events) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  lockstep::MicroBatchLoader loader(make_samples(), {.batch_size = 4, .shuffle = true, .drop_last = true});
  std::optional<lockstep::DistributedDataParallel<Net>> ddp;
  lockstep::ElasticTraining training({.rebuild = [&] { ddp.emplace(net); }, .seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);
  events.happen("join");
  if (!training.join()) return false;
  training.run(kSteps, {.gradients =
                            [&](lockstep::ElasticStep& step) {
                              step.backward(*ddp, [&](const lockstep::MicroBatch& micro_batch) {
                                lockstep::data::Example& batch = loader.next(micro_batch);
                                return torch::mse_loss((*ddp)->forward(batch.data), batch.target);
                              });
                              events.happen(std::to_string(step.number()));
                            },
                        .update = [&](std::int64_t) { optimizer.step(); }});
  return true;
}

int train(const std::string& folder, std::chrono::seconds timeout, const Events& events, int rank) {
  events.happen("start");
  const lockstep::ProcessGroupGuard world("", {.timeout = timeout, .enable_reconfigure = true});
  torch::manual_seed(5);
  Net net;
  if (!train_once(net, events)) return 0;
  if (events.are("twice") && !train_once(net, {})) return 3;
  events.happen("end");
  std::cout << "rank " << rank << " has become " << lockstep::get_rank() << " of " << lockstep::get_world_size()
            << std::endl;
  std::ofstream file(folder + "/weights." + std::to_string(rank), std::ios::binary);
  for (const auto& tensors : {net->parameters(), net->buffers()}) {
    for (const torch::Tensor& tensor : tensors)
      file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const std::string folder = argv[1];
  const int rank = own_rank();
  const int life = count_lives(folder + "/pid." + std::to_string(rank));
  const Events events{{argv + 3, argv + argc}, ":" + std::to_string(rank) + ":" + std::to_string(life) + ":"};
  try {
    const int code = train(folder, std::chrono::seconds(std::atoi(argv[2])), events, rank);
    events.happen("left");
    return code;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
