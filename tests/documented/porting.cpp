// Code of docs/porting.md, as it stands there.
#include <torch/torch.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "net.h"

namespace lockstep {
namespace {

constexpr std::size_t kEpochs = 10;
void train(int /*rank*/) {}

[[maybe_unused]] void start() {
  ProcessGroupGuard group;
  const int rank = group.rank();
  const int world_size = group.world_size();
  (void)rank, (void)world_size;
}

[[maybe_unused]] void by_hand(int rank) {
  init_process_group(
      "lockstep",
      {.init_method = "tcp://10.0.0.1:29500", .rank = rank, .world_size = 4, .timeout = std::chrono::seconds(60)});
}

[[maybe_unused]] void collectives(const torch::Tensor& t, const std::vector<torch::Tensor>& outputs,
                                  const torch::Tensor& part) {
  all_reduce(t, {.op = c10d::ReduceOp::SUM});
  broadcast(t, /*src=*/0);
  all_gather(outputs, t);
  reduce_scatter_tensor(part, t);
  barrier();

  Work work = all_reduce_async(t);
  work->wait();
}

[[maybe_unused]] void messages(int rank, const torch::Tensor& t) {
  if (rank == 0) {
    send(t, /*dst=*/1, {.tag = 7});
  } else {
    std::printf("from rank %d\n", recv(t, kAnySource, {.tag = 7}));
  }
  Work request = irecv(t, /*src=*/0);
  request->wait();
}

[[maybe_unused]] void objects(int rank, double loss, std::string (*make_run_folder)()) {
  std::map<std::string, double> mine{{"loss", loss}};
  std::vector<std::map<std::string, double>> metrics = all_gather_object(mine);

  std::string path = rank == 0 ? make_run_folder() : "";
  broadcast_object(path, /*src=*/0);
}

[[maybe_unused]] void groups(const torch::Tensor& t) {
  ProcessGroup front = new_group({0, 1});
  if (get_rank(front) >= 0) {
    all_reduce(t, {.group = front});
  }
}

[[maybe_unused]] void meshes(const torch::Tensor& t) {
  DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 3}, {"dp", "tp"});
  all_reduce(t, {.group = mesh.get_group("dp")});
}

[[maybe_unused]] void ddp(data::DataLoader& loader) {
  Net model;
  DistributedDataParallel<Net> ddp(model);
  torch::optim::SGD optimizer(ddp.parameters(), /*lr=*/0.01);

  for (auto& [x, y] : loader) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::nll_loss(ddp->forward(x), y);
    loss.backward();
    optimizer.step();
  }
}

[[maybe_unused]] void no_sync(DistributedDataParallel<Net>& ddp, Loss loss_of, const torch::Tensor& x0,
                              const torch::Tensor& y0, const torch::Tensor& x1, const torch::Tensor& y1) {
  {
    const auto guard = ddp.no_sync();
    loss_of(ddp->forward(x0), y0).backward();
  }
  loss_of(ddp->forward(x1), y1).backward();
}

[[maybe_unused]] void join(DistributedDataParallel<Net>& ddp, data::DataLoader& loader) {
  ddp.join([&] {
    for (auto& [x, y] : loader) {
      torch::nll_loss(ddp->forward(x), y).backward();
    }
  });
}

[[maybe_unused]] void hook(DistributedDataParallel<Net>& ddp) {
  ddp.register_comm_hook(make_compress_hook(torch::kBFloat16));
}

[[maybe_unused]] void power_sgd(DistributedDataParallel<Net>& ddp) {
  ddp.register_comm_hook(make_power_sgd_hook({.matrix_approximation_rank = 2}));
}

[[maybe_unused]] void loss_scaling(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer,
                                   torch::Tensor (*loss_of)(torch::Tensor, torch::Tensor), data::DataLoader& loader) {
  GradScaler scaler;
  for (auto& [x, y] : loader) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const Autocast autocast(torch::kCPU, torch::kHalf);
      loss = loss_of(ddp->forward(x), y);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
  }
}

[[maybe_unused]] void sync_batch_norm(models::ResNet& model) {
  convert_sync_batchnorm(model);
}

[[maybe_unused]] void zero(DistributedDataParallel<Net>& ddp) {
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
}

[[maybe_unused]] void data_parallel(Net& model, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  DataParallel<Net> parallel(model, {.device_ids = {torch::Device("cuda:0"), torch::Device("cuda:1")}});
  loss_of(parallel.forward(x), y).backward();
}

[[maybe_unused]] void loaders(std::shared_ptr<const data::Dataset> dataset) {
  data::DataLoader loader(dataset, {.batch_size = 64, .shuffle = true, .seed = 1, .num_workers = 4});
  for (std::size_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& [x, y] : loader) {
      (void)x, (void)y;
    }
  }
}

class Squares : public data::Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  data::Example get(std::int64_t index) const override {
    return {torch::tensor(double(index)), torch::tensor(double(index * index))};
  }
};

[[maybe_unused]] void pictures() {
  data::ImageFolder train(
      "imagenet/train",
      data::Compose({data::RandomResizedCrop{224}, data::RandomHorizontalFlip{},
                     data::ColorJitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4}, data::ToTensor{},
                     data::Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}}));
}

[[maybe_unused]] double evaluate(Net& model, std::shared_ptr<const data::Dataset> test) {
  Accuracy accuracy;
  model->eval();
  const torch::NoGradGuard no_grad;
  data::DataLoader loader(test, {.batch_size = 1000, .exact = true});
  for (auto& [x, y] : loader) accuracy.update(model->forward(x), y);
  const double value = accuracy.compute()[0];
  return value;
}

void train(Net& model, torch::optim::SGD& optimizer) {
  model->train();
  optimizer.step();
}

[[maybe_unused]] void schedule(Net& model, torch::optim::SGD& optimizer) {
  optim::MultiStepLR scheduler(optimizer, {30, 60}, 0.1);
  for (int epoch = 0; epoch < 90; ++epoch) {
    train(model, optimizer);
    scheduler.step();
  }
}

[[maybe_unused]] void checkpoints(int rank, Net& model, torch::optim::SGD& optimizer, std::int64_t step,
                                  std::int64_t epoch) {
  checkpoint::CheckpointManager manager("runs/a", {.keep_last = 3});
  if (rank == 0) {
    checkpoint::Checkpoint state;
    state.add_model(*model);
    state.add_optimizer(optimizer);
    state.set("epoch", epoch);
    manager.save(step, state);
  }

  if (auto state = manager.load_latest()) {
    state->restore_model(*model);
    state->restore_optimizer(optimizer);
    epoch = state->get_int("epoch");
  }
}

[[maybe_unused]] void interchange(models::ResNet& model) {
  checkpoint::load_state_dict(*model, checkpoint::read_state_dict("resnet18.pt"));
  checkpoint::write_state_dict("trained.pt", checkpoint::state_dict(*model));
}

[[maybe_unused]] bool spawned() {
  // lockstep run --standalone --nproc-per-node 4 ./train
  // Several machines: srun ./train, mpirun ./train, or the variables by hand.
  launch::SpawnOptions options;
  options.nprocs = 4;
  const Status status = launch::spawn([](int rank) { train(rank); }, options);
  return status.ok();
}

}  // namespace
}  // namespace lockstep
