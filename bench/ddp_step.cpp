// Time of a training step, one thread per process, on the CPU or on a GPU. It runs alone (several independent processes
// at once are the machine's limit) or under DistributedDataParallel, started by `lockstep run`. Peer:
// peers/ddp_step.py, with the same models, optimizer, batches and options.
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/captured_step.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/fast_batch_norm.h>
#include <lockstep/nn/fast_convolution.h>
#include <lockstep/nn/fused_step.h>
#include <lockstep/nn/memory_format.h>
#include <lockstep/nn/mixed_precision.h>
#include <lockstep/nn/shared_step.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/nn/zero_redundancy_optimizer.h>
#include <torch/cuda.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "step_program.h"

namespace {

struct Options : lockstep::bench::StepOptions {
  std::string mode;
  std::string optimizer = "sgd";
  bool sync_batch_norm = false;
  bool libtorch_batch_norm = false;
  bool libtorch_convolution = false;
  std::string hold;
  std::string busy;
  bool keep_gradients = false;
  std::string device = "cpu";
  bool autocast = false;
  bool channels_last = false;
  int together = 1;
  bool graph = false;
  bool one_pass = false;
};

// Written under another name and renamed: a process that waits for the file must not see a part of it.
void write_report(const Options& options, int rank, const std::vector<double>& seconds, std::size_t gradient_bytes,
                  std::size_t state_bytes) {
  const std::string path = options.output + "." + std::to_string(rank);
  std::ofstream(path + ".part") << nlohmann::json{
      {"pid", ::getpid()}, {"seconds", seconds}, {"gradient_bytes", gradient_bytes}, {"state_bytes", state_bytes}};
  std::filesystem::rename(path + ".part", path);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<torch::Tensor>& parameters,
                                                        const Options& options) {
  namespace optim = torch::optim;
  if (name == "sgd") return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(1e-3).momentum(0.9));
  if (name == "adam") return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(1e-3));
  if (name == "adamw") return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(1e-3));
  const lockstep::SharedStepOptions shared{.fused = true, .average_gradients = options.one_pass};
  if (name == "shared-sgd") {
    return std::make_unique<lockstep::SharedStep<optim::SGD>>(parameters, optim::SGDOptions(1e-3).momentum(0.9),
                                                              shared);
  }
  if (name == "shared-adamw") {
    return std::make_unique<lockstep::SharedStep<optim::AdamW>>(parameters, optim::AdamWOptions(1e-3), shared);
  }
  return std::make_unique<lockstep::ZeroRedundancyOptimizer<optim::Adam>>(
      parameters, optim::AdamOptions(1e-3), lockstep::ZeroRedundancyOptions{.fused = true});
}

// Of this rank.
std::size_t adam_state_bytes(const torch::optim::Optimizer& optimizer) {
  if (const auto* sharded = dynamic_cast<const lockstep::ShardedOptimizer*>(&optimizer)) return sharded->state_bytes();
  std::size_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto* const adam = dynamic_cast<const torch::optim::AdamParamState*>(state.get());
    if (adam != nullptr) bytes += adam->exp_avg().nbytes() + adam->exp_avg_sq().nbytes();
  }
  return bytes;
}

// As many as PyTorch's DDP needs, for both.
constexpr int kGraphWarmUp = 11;

template <typename Model>
torch::Tensor loss_of(const Options& options, Model& model, const lockstep::bench::Batch& batch) {
  if (!options.autocast) return torch::cross_entropy_loss(model->forward(batch.images), batch.labels);
  torch::Tensor scores;
  {
    const lockstep::Autocast autocast(batch.images.device().type());
    scores = model->forward(batch.images);
  }
  return torch::cross_entropy_loss(scores.to(torch::kFloat), batch.labels);
}

// `model` is the module's holder or a DistributedDataParallel around it.
template <typename Model>
void measure(const Options& options, Model& model, const std::vector<torch::Tensor>& parameters,
             const lockstep::bench::Batch& batch) {
  const bool ddp = lockstep::is_initialized();
  const int rank = ddp ? lockstep::get_rank() : 0;
  std::size_t gradient_bytes = 0;
  for (const torch::Tensor& parameter : parameters) gradient_bytes += parameter.nbytes();
  const auto optimizer = make_optimizer(options.optimizer, parameters, options);
  const auto plain = [&] {
    optimizer->zero_grad(/*set_to_none=*/!options.keep_gradients);
    loss_of(options, model, batch).backward();
    lockstep::fused_step(*optimizer);  // the sharded and the shared ones have an option for it
  };
  std::optional<lockstep::CapturedStep> recorded;
  if (options.graph)
    recorded.emplace(plain, lockstep::CapturedStepOptions{.warm_up = kGraphWarmUp, .device = batch.images.device()});
  const auto step = [&] { recorded ? (*recorded)() : plain(); };
  const auto meet = [&] {
    if (ddp) lockstep::barrier();
  };
  const auto finish = [&] {
    if (batch.images.is_cuda()) torch::cuda::synchronize();
  };
  for (int i = 0; recorded && i <= kGraphWarmUp; ++i) step();
  const std::vector<double> seconds = lockstep::bench::time_steps(options.steps, meet, step, options.together, finish);
  write_report(options, rank, seconds, gradient_bytes, adam_state_bytes(*optimizer));
  while (!options.busy.empty() && !std::filesystem::exists(options.busy)) step();
  while (!options.hold.empty() && !std::filesystem::exists(options.hold)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

torch::Device device_of(const Options& options) {
  if (options.device == "cpu") return torch::kCPU;
  return lockstep::is_initialized() ? lockstep::local_device() : torch::Device(torch::kCUDA, 0);
}

// Puts the model and its batch where they are trained, in the layout that is asked for.
template <typename Model>
void place(const Options& options, Model& model, lockstep::bench::Batch& batch) {
  const torch::Device device = device_of(options);
  model->to(device);
  batch = {batch.images.to(device), batch.labels.to(device)};
  if (!options.channels_last) return;
  batch.images = lockstep::to_memory_format(batch.images, torch::MemoryFormat::ChannelsLast);
  lockstep::to_memory_format(*model, torch::MemoryFormat::ChannelsLast);
}

template <typename Model>
void run(const Options& options, Model model, lockstep::bench::Batch batch) {
  place(options, model, batch);
  if (options.mode == "alone") return measure(options, model, model->parameters(), batch);
  if (options.sync_batch_norm) lockstep::convert_sync_batchnorm(model);
  lockstep::DistributedDataParallel<Model> ddp(model);
  if (options.one_pass) ddp.register_comm_hook(lockstep::make_noop_hook());
  measure(options, ddp, model->parameters(), batch);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of a training workload; the rank's number is appended to --output");
  lockstep::bench::add_step_options(app, options);
  app.add_option("--mode", options.mode)->required()->check(CLI::IsMember({"alone", "ddp"}));
  app.add_option("--optimizer", options.optimizer)
      ->check(CLI::IsMember({"sgd", "adam", "sharded-adam", "adamw", "shared-sgd", "shared-adamw"}));
  app.add_flag("--sync-batch-norm", options.sync_batch_norm, "synchronise batch normalisation");
  app.add_flag("--libtorch-batch-norm", options.libtorch_batch_norm, "without lockstep::use_fast_batch_norm()");
  app.add_flag("--libtorch-convolution", options.libtorch_convolution, "without lockstep::use_fast_convolution()");
  app.add_flag("--one-pass", options.one_pass, "of shared steps: the step takes the mean of the gradients");
  app.add_option("--hold", options.hold, "wait afterwards until this file exists");
  app.add_option("--busy", options.busy, "go on training afterwards until this file exists");
  app.add_flag("--keep-gradients", options.keep_gradients, "set gradients to zero instead of freeing them");
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--autocast", options.autocast, "the forward pass in bfloat16 where that is right");
  app.add_flag("--channels-last", options.channels_last, "images and weights with the channels last in memory");
  app.add_option("--together", options.together, "time so many steps as one, and divide")->check(CLI::PositiveNumber);
  app.add_flag("--graph", options.graph, "on a GPU: the step as a CUDA graph");
  CLI11_PARSE(app, argc, argv);

  if (options.one_pass && options.optimizer.rfind("shared-", 0) != 0) {
    lockstep::bench::die("--one-pass",
                         "it needs --optimizer shared-sgd or shared-adamw; others would step without a mean");
  }
  const bool on_gpu = options.device == "cuda";
  if (on_gpu && !lockstep::load_cuda().loaded) lockstep::bench::die("--device cuda", "there is no GPU here");
  torch::set_num_threads(1);
  torch::manual_seed(0);
  if (!options.libtorch_batch_norm) lockstep::use_fast_batch_norm();
  if (!options.libtorch_convolution) lockstep::use_fast_convolution();
  at::globalContext().setBenchmarkCuDNN(true);
  std::optional<lockstep::ProcessGroupGuard> group;
  if (options.mode == "ddp") group.emplace(on_gpu ? "cpu:lockstep,cuda:nccl" : "lockstep");
  lockstep::bench::run_workload(options.workload,
                                {.cnn_28 = 64, .mlp_6m = 32, .resnet18_32 = 16, .resnet18_224 = 8, .resnet50_224 = 64},
                                [&](const auto& model, const auto& batch) { run(options, model, batch); });
  return 0;
}
