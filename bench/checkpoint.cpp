// Times of loading and saving state dicts, and of saving checkpoints with and without a thread. The tensors are those
// of bench/peers/checkpoint.py: few large ones with nearly all of the bytes, and many small ones.
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/state_dict.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace checkpoint = lockstep::checkpoint;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string measure;
  std::string file;
  std::string output;
  std::int64_t mib = 256;
  int times = 5;
};

constexpr std::int64_t kSmallTensors = 200;
constexpr std::int64_t kSmallElements = 1024;
constexpr std::int64_t kLargeElements = 1 << 20;

checkpoint::StateDict make_state(std::int64_t mib) {
  torch::manual_seed(1);
  checkpoint::StateDict state;
  for (std::int64_t i = 0; i < mib / 4; ++i) state.insert("large" + std::to_string(i), torch::randn({kLargeElements}));
  for (std::int64_t i = 0; i < kSmallTensors; ++i) {
    state.insert("small" + std::to_string(i), torch::randn({kSmallElements}));
  }
  return state;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <typename Run>
std::vector<double> timed(int times, Run run) {
  run();  // warm-up
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const auto begin = Clock::now();
    run();
    seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

// Every value is read once: a mapped file is not loaded before.
void load(const std::string& file) {
  double sum = 0;
  for (const auto& entry : checkpoint::read_state_dict(file)) sum += entry->sum().item<double>();
  if (sum == 0) throw std::runtime_error("the tensors are zeros");
}

// How long save() keeps a training that makes steps of its own in between.
std::vector<double> stall(const Options& options, bool asynchronous) {
  torch::nn::Module model;
  for (const auto& entry : make_state(options.mib)) model.register_parameter(entry.key(), *entry);
  checkpoint::Checkpoint state;
  state.add_model(model);
  checkpoint::CheckpointManager manager(options.file, {.keep_last = 1, .asynchronous = asynchronous});
  std::int64_t step = 0;
  manager.save(++step, state);
  std::vector<double> seconds;
  for (int i = 0; i < options.times; ++i) {
    manager.wait();
    const auto begin = Clock::now();
    manager.save(++step, state);
    seconds.push_back(seconds_since(begin));
  }
  manager.wait();
  return seconds;
}

std::vector<double> measure(const Options& options) {
  if (options.measure == "load") return timed(options.times, [&] { load(options.file); });
  if (options.measure == "save") {
    const checkpoint::StateDict state = make_state(options.mib);
    return timed(options.times, [&] { checkpoint::write_state_dict(options.file, state); });
  }
  return stall(options, options.measure == "asynchronous");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app;
  app.add_option("--measure", options.measure)
      ->check(CLI::IsMember({"load", "save", "synchronous", "asynchronous"}))
      ->required();
  app.add_option("--file", options.file)->required();
  app.add_option("--mib", options.mib);
  app.add_option("--times", options.times);
  app.add_option("--output", options.output)->required();
  CLI11_PARSE(app, argc, argv);
  try {
    std::ofstream(options.output) << nlohmann::json{{"values", measure(options)}};
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
