// Mixed precision: the same training in float, with autocast, with autocast to half and a scaled loss, and with
// bfloat16 parameters whose steps are taken on float masters. Prints what a step sends and how far the loss comes. Run
// with any number of processes:
//   lockstep run --nproc-per-node 2 ./ddp_precision [STEPS]
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <lockstep/nn/grad_scaler.h>
#include <lockstep/nn/mixed_precision.h>
#include <torch/torch.h>

#include <iostream>

namespace {

using Net = torch::nn::Sequential;
using Ddp = lockstep::DistributedDataParallel<Net>;

constexpr double kRate = 0.5;

Net make_net() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(32, 64), torch::nn::Tanh(), torch::nn::Linear(64, 32));
}

// Every rank has data of its own, the same in each training.
torch::Tensor batch(int step) {
  torch::manual_seed(1000 * lockstep::get_rank() + step);
  return torch::randn({16, 32});
}

torch::Tensor loss_of(const torch::Tensor& y, const torch::Tensor& x) {
  return (y.to(torch::kFloat) - x.sin()).square().mean();
}

void report(const char* name, const Ddp& ddp, const torch::Tensor& loss) {
  const torch::Tensor mean = loss.detach().to(torch::kFloat).clone();
  lockstep::all_reduce(mean, {.op = c10d::ReduceOp::AVG});
  if (lockstep::get_rank() != 0) return;
  std::cout << "Rank 0: " << name << " sends " << ddp.reducer().sent().last_pass << " bytes per step, loss "
            << mean.item<float>() << std::endl;
}

void train_in_float(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = batch(step);
    optimizer.zero_grad();
    loss = loss_of(ddp->forward(x), x);
    loss.backward();
    optimizer.step();
  }
  report("float", ddp, loss);
}

void train_with_autocast(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = batch(step);
    optimizer.zero_grad();
    {
      const lockstep::Autocast autocast(torch::kCPU);
      loss = loss_of(ddp->forward(x), x);
    }
    loss.backward();  // outside; gradients are float
    optimizer.step();
  }
  report("autocast", ddp, loss);
}

void train_with_scaled_loss(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  lockstep::GradScaler scaler({.init_scale = 1024});
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = batch(step);
    optimizer.zero_grad();
    {
      const lockstep::Autocast autocast(torch::kCPU, torch::kHalf);
      loss = loss_of(ddp->forward(x), x);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
  }
  report("half with a scaled loss", ddp, loss);
}

void train_with_masters(int steps) {
  Net net = make_net();
  net->to(torch::kBFloat16);
  Ddp ddp(net);
  lockstep::MasterWeights masters(*net);
  torch::optim::SGD optimizer(masters.parameters(), kRate);
  torch::Tensor loss;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor x = batch(step);
    net->zero_grad();
    loss = loss_of(ddp->forward(x.to(torch::kBFloat16)), x);
    loss.backward();
    masters.step(optimizer);
  }
  report("bfloat16 with float masters", ddp, loss);
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::ProcessGroupGuard group;
  const int steps = argc > 1 ? std::stoi(argv[1]) : 200;
  train_in_float(steps);
  train_with_autocast(steps);
  train_with_scaled_loss(steps);
  train_with_masters(steps);
}
