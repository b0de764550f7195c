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

// `step` takes one batch through the model and the optimizer, and returns its loss.
template <typename Step>
void train(const char* name, const Ddp& ddp, int steps, const Step& step) {
  torch::Tensor loss;
  for (int number = 0; number < steps; ++number) loss = step(batch(number));
  report(name, ddp, loss);
}

void train_in_float(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  train("float", ddp, steps, [&](const torch::Tensor& x) {
    optimizer.zero_grad();
    torch::Tensor loss = loss_of(ddp->forward(x), x);
    loss.backward();
    optimizer.step();
    return loss;
  });
}

// Only the forward pass and the loss: the backward pass is outside, and gradients are float.
torch::Tensor loss_with_autocast(Ddp& ddp, const torch::Tensor& x, torch::Dtype dtype) {
  const lockstep::Autocast autocast(torch::kCPU, dtype);
  return loss_of(ddp->forward(x), x);
}

void train_with_autocast(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  train("autocast", ddp, steps, [&](const torch::Tensor& x) {
    optimizer.zero_grad();
    torch::Tensor loss = loss_with_autocast(ddp, x, torch::kBFloat16);
    loss.backward();
    optimizer.step();
    return loss;
  });
}

void train_with_scaled_loss(int steps) {
  Net net = make_net();
  Ddp ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), kRate);
  lockstep::GradScaler scaler({.init_scale = 1024});
  train("half with a scaled loss", ddp, steps, [&](const torch::Tensor& x) {
    optimizer.zero_grad();
    torch::Tensor loss = loss_with_autocast(ddp, x, torch::kHalf);
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss;
  });
}

void train_with_masters(int steps) {
  Net net = make_net();
  net->to(torch::kBFloat16);
  Ddp ddp(net);
  lockstep::MasterWeights masters(*net);
  torch::optim::SGD optimizer(masters.parameters(), kRate);
  train("bfloat16 with float masters", ddp, steps, [&](const torch::Tensor& x) {
    net->zero_grad();
    torch::Tensor loss = loss_of(ddp->forward(x.to(torch::kBFloat16)), x);
    loss.backward();
    masters.step(optimizer);
    return loss;
  });
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
