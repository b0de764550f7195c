// Code of docs/porting.md, as it stands there.
#include <stdlib.h>
#include <torch/torch.h>

#include <cstdio>
#include <map>
#include <memory>
#include <span>
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

[[maybe_unused]] void setup(int rank, int world_size) {
  ::setenv("MASTER_ADDR", "localhost", /*overwrite=*/1);
  ::setenv("MASTER_PORT", "12355", /*overwrite=*/1);
  init_process_group("gloo", {.rank = rank, .world_size = world_size});
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

[[maybe_unused]] void rooted(int rank, const torch::Tensor& t, const std::vector<torch::Tensor>& outputs,
                             const std::vector<torch::Tensor>& inputs, const torch::Tensor& stacked,
                             const torch::Tensor& received, const torch::Tensor& sent) {
  reduce(t, /*dst=*/0);
  gather(t, rank == 0 ? outputs : std::vector<torch::Tensor>(), /*dst=*/0);
  scatter(t, rank == 0 ? inputs : std::vector<torch::Tensor>(), /*src=*/0);
  all_gather_into_tensor(stacked, t);
  all_to_all_single(received, sent);
  monitored_barrier({.timeout = std::chrono::seconds(20)});
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

[[maybe_unused]] void batch(const torch::Tensor& mine, const torch::Tensor& theirs, int next, int previous) {
  std::vector<PointToPoint> ops{{PointToPoint::Kind::kSend, mine, next},
                                {PointToPoint::Kind::kReceive, theirs, previous}};
  for (const Work& req : batch_isend_irecv(ops)) req->wait();
}

[[maybe_unused]] void objects(int rank, double loss, std::string (*make_run_folder)()) {
  std::map<std::string, double> mine{{"loss", loss}};
  std::vector<std::map<std::string, double>> metrics = all_gather_object(mine);

  std::string path = rank == 0 ? make_run_folder() : "";
  broadcast_object(path, /*src=*/0);
}

[[maybe_unused]] void other_objects(int rank, double loss, const std::vector<std::string>& tasks,
                                    std::map<std::string, double>& config) {
  std::vector<double> losses = gather_object(loss, /*dst=*/0);

  std::string mine = scatter_object(tasks, /*src=*/0);

  if (rank == 0) {
    send_object(config, /*dst=*/1);
  } else if (rank == 1) {
    recv_object(config, /*src=*/0);
  }
}

[[maybe_unused]] void groups(const torch::Tensor& t) {
  ProcessGroup front = new_group({0, 1});
  if (get_rank(front) >= 0) {
    all_reduce(t, {.group = front});
  }
}

[[maybe_unused]] void subgroups() {
  ProcessGroup half = new_subgroups_by_enumeration({{0, 2}, {1, 3}});
  ProcessGroup machine = new_subgroups(4);
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

[[maybe_unused]] void devices(const torch::Tensor& x) {
  const torch::Device device = local_device();  // current already
  Net model;
  model->to(device);
  DistributedDataParallel<Net> ddp(model, {.device_ids = {device}});
  torch::Tensor y = ddp(x);  // moves x
}

[[maybe_unused]] void ddp_options(Net& model, const ProcessGroup& group) {
  DistributedDataParallel<Net> ddp(model, {.process_group = group,
                                           .broadcast_buffers = false,
                                           .bucket_cap_mb = 10,
                                           .find_unused_parameters = true,
                                           .static_graph = true});
}

[[maybe_unused]] void no_sync(DistributedDataParallel<Net>& ddp, Loss loss_of, int parts,
                              const std::vector<torch::Tensor>& x, const std::vector<torch::Tensor>& y) {
  for (int part = 0; part < parts; ++part) {
    const auto guard = ddp.no_sync(part + 1 < parts);
    loss_of(ddp->forward(x[part]), y[part]).backward();
  }
}

[[maybe_unused]] void join(DistributedDataParallel<Net>& ddp, data::DataLoader& loader) {
  ddp.join([&] {
    for (auto& [x, y] : loader) {
      torch::nll_loss(ddp->forward(x), y).backward();
    }
  });
}

[[maybe_unused]] void join_with_steps(DistributedDataParallel<Net>& ddp, data::DataLoader& loader,
                                      ZeroRedundancyOptimizer<torch::optim::Adam>& optimizer) {
  const auto step = [&] { optimizer.step(); };
  const auto loop = [&] {
    for (auto& [x, y] : loader) {
      torch::nll_loss(ddp->forward(x), y).backward();
      step();
    }
  };
  ddp.join(loop, {.after_shadow_pass = step});
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

[[maybe_unused]] void masters(Net& model, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  model->to(torch::kBFloat16);
  DistributedDataParallel<Net> ddp(model);
  MasterWeights masters(*model);
  torch::optim::AdamW optimizer(masters.parameters(), /*lr=*/1e-3);
  loss_of(ddp->forward(x.to(torch::kBFloat16)), y).backward();
  masters.step(optimizer);
  model->zero_grad();  // the optimizer knows only the float parameters
}

[[maybe_unused]] void around_the_step(Net& model, torch::Tensor& loss, torch::optim::SGD& optimizer,
                                      ExponentialMovingAverage& ema) {
  loss.backward();
  clip_grad_norm_(*model, 1.0);
  optimizer.step();
  ema.update();
}

[[maybe_unused]] void fused(DistributedDataParallel<Net>& ddp) {
  torch::optim::AdamW optimizer(ddp.parameters(), /*lr=*/1e-3);
  fused_step(optimizer);
}

[[maybe_unused]] void captured(Net& model, void (*train_step)()) {
  DistributedDataParallel<Net> ddp(model);
  CapturedStep step(train_step);
  step();
}

[[maybe_unused]] void sync_batch_norm(models::ResNet& model) {
  convert_sync_batchnorm(model);
}

[[maybe_unused]] void zero(DistributedDataParallel<Net>& ddp) {
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
}

[[maybe_unused]] void zero_saved(int rank, ZeroRedundancyOptimizer<torch::optim::Adam>& optimizer) {
  optimizer.consolidate_state_dict(/*to=*/0);
  if (rank == 0) torch::save(optimizer, "optimizer.pt");
}

[[maybe_unused]] void gradients_by_hand(const std::shared_ptr<const data::Dataset>& dataset, int rank, int size,
                                        Net& model, torch::Tensor& loss, torch::optim::SGD& optimizer) {
  data::DataPartitioner partition(dataset->size(), std::vector<double>(size, 1.0 / size));
  const std::span<const std::int64_t> mine = partition.use(rank);
  data::DataLoader train_set(data::Subset(dataset, {mine.begin(), mine.end()}),
                             {.batch_size = 64, .rank = 0, .world_size = 1});
  loss.backward();
  average_gradients(model);
  optimizer.step();
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

[[maybe_unused]] void batches_on_a_device(std::shared_ptr<const data::Dataset> dataset, torch::Device device) {
  data::DataLoader loader(dataset, {.batch_size = 64, .num_workers = 4, .device = device});
  for (auto& [x, y] : loader) {
    (void)x, (void)y;
  }
}

[[maybe_unused]] void weighted(std::shared_ptr<const data::Dataset> dataset, const std::vector<double>& weights) {
  auto sampler = std::make_shared<data::WeightedSampler>(weights, weights.size());
  data::DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
}

[[maybe_unused]] void sampler_alone(const std::shared_ptr<const data::Dataset>& dataset, int rank, int world_size) {
  data::DistributedSampler sampler(dataset->size(),
                                   {.num_replicas = world_size, .rank = rank, .shuffle = false, .drop_last = true});
  std::vector<std::int64_t> indices = sampler.indices();
}

class Squares : public data::Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  data::Example get(std::int64_t index) const override {
    return {torch::tensor(double(index)), torch::tensor(double(index * index))};
  }
};

[[maybe_unused]] void fashion() {
  data::Mnist train("data", /*train=*/true, {.normalization = data::Normalization{0.286F, 0.353F}});
}

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
                                  std::int64_t& epoch) {
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

[[maybe_unused]] void wrapped(int rank, DistributedDataParallel<Net>& ddp, const std::string& path) {
  if (rank == 0) checkpoint::write_state_dict(path, checkpoint::state_dict(*ddp.module()));
  barrier();
  checkpoint::load_state_dict(*ddp.module(), checkpoint::read_state_dict(path, local_device()));
}

[[maybe_unused]] void generators(int rank, checkpoint::Checkpoint& state) {
  const auto generators = gather_object(checkpoint::generator_state(), /*dst=*/0);
  if (rank == 0) state.add_generators(generators);

  state.restore_generator();
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
