// The job of train.cpp in one process: a replica of the model on each GPU, or REPLICAS (2) on the CPU's cores. Its rows
// stand beside those of the processes:
//
//   lockstep scaling --procs 1 -o replicas -- ./resnet_data_parallel FOLDER [EPOCHS [SIDE [BATCH [SEED [REPLICAS]]]]]
//   [OPTIONS]
//
// BATCH is that of each replica. Each replica normalises its own part of a batch, as each process does.
#include <optional>
#include <utility>

#include "job.h"

namespace {

namespace data = lockstep::data;
namespace report = lockstep::report;
using lockstep::models::ResNet;
using Replicas = lockstep::DataParallel<ResNet>;

torch::Device device_of_this_machine() {
  return torch::cuda::is_available() ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
}

torch::Tensor scores_of(const resnet_job::Arguments& a, Replicas& replicas, const torch::Tensor& pictures) {
  std::optional<lockstep::Autocast> autocast;
  if (a.bf16) autocast.emplace(replicas.devices().front().type());
  const auto format = a.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  return replicas.forward(lockstep::to_memory_format(pictures, format)).to(torch::kFloat32);
}

lockstep::EpochReport train_epoch(const resnet_job::Arguments& a, std::int64_t epoch, Replicas& replicas,
                                  torch::optim::SGD& optimizer, data::DataLoader& loader) {
  const torch::Device device = replicas.devices().front();
  lockstep::EpochReport found{.epoch = epoch, .loss = 0};
  report::PartTimer timer(report::Part::kInput);
  for (auto& [pictures, labels] : loader) {
    timer.begin(report::Part::kCompute);
    optimizer.zero_grad();
    const torch::Tensor scores = scores_of(a, replicas, pictures);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels.to(device));
    loss.backward();
    lockstep::fused_step(optimizer);  // as the Trainer
    found.samples += labels.size(0);
    found.loss += loss.item<double>() * static_cast<double>(labels.size(0));
    timer.begin(report::Part::kInput);  // what comes next
  }
  const report::PartTimes times = timer.lap();
  found.loss /= static_cast<double>(found.samples);
  found.seconds = times.total();
  found.input_seconds = times.input;
  return found;
}

double accuracy_of(const resnet_job::Arguments& a, Replicas& replicas, data::DataLoader& loader) {
  const torch::NoGradGuard no_grad;
  ResNet& net = replicas.module();
  net->eval();
  std::int64_t right = 0;
  std::int64_t samples = 0;
  for (auto& [pictures, labels] : loader) {
    const torch::Tensor predicted = scores_of(a, replicas, pictures).argmax(1).cpu();
    right += predicted.eq(labels).sum().item<std::int64_t>();
    samples += labels.size(0);
  }
  net->train();
  return static_cast<double>(right) / static_cast<double>(samples);
}

void train(const resnet_job::Arguments& a) {
  data::ImageFolder pictures = resnet_job::train_pictures(a);
  ResNet net = resnet_job::make_net(a, static_cast<std::int64_t>(pictures.classes().size()));
  lockstep::use_fast_batch_norm();
  lockstep::use_fast_convolution();
  net->to(device_of_this_machine());
  if (a.channels_last) lockstep::to_memory_format(*net, torch::MemoryFormat::ChannelsLast);
  Replicas replicas(net, {.cpu_replicas = a.replicas});
  const std::int64_t batch = a.batch * static_cast<std::int64_t>(replicas.devices().size());
  data::DataLoader train_loader(
      std::move(pictures), {.batch_size = batch, .shuffle = true, .seed = a.seed, .num_workers = data::kAutoWorkers});
  data::DataLoader test_loader(resnet_job::test_pictures(a), {.batch_size = batch, .num_workers = 1});
  auto optimizer = resnet_job::make_optimizer(net);
  resnet_job::Told told(/*is_first=*/true, /*world_size=*/1);
  for (std::int64_t epoch = 0; epoch < a.epochs; ++epoch) {
    told.epoch(train_epoch(a, epoch, replicas, optimizer, train_loader));
    told.accuracy(epoch, accuracy_of(a, replicas, test_loader));
  }
  told.end();
}

}  // namespace

int main(int argc, char** argv) {
  return resnet_job::run(argc, argv, "FOLDER [EPOCHS [SIDE [BATCH [SEED [REPLICAS]]]]]", train);
}
