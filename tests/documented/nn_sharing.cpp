// Code of docs/sync_batch_norm.md, docs/sharded_optimizer.md and of their headers, as it stands there.
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/shared_step.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "net.h"

namespace lockstep {
namespace {

using checkpoint::Checkpoint;

[[maybe_unused]] void converting() {
  models::ResNet net = models::resnet18();
  std::vector<std::string> converted = convert_sync_batchnorm(net);
  DistributedDataParallel ddp(net);
}

[[maybe_unused]] void converting_header() {
  models::ResNet net = models::resnet18();
  convert_sync_batchnorm(net);
  DistributedDataParallel ddp(net);
}

[[maybe_unused]] void layer_header() {
  SyncBatchNorm norm(SyncBatchNormOptions(64).momentum(std::nullopt));
}

[[maybe_unused]] void layer(const ProcessGroup& group, const torch::Tensor& x) {
  SyncBatchNorm norm(SyncBatchNormOptions(64).eps(1e-3).momentum(std::nullopt).process_group(group));
  torch::Tensor y = norm->forward(x);
}

[[maybe_unused]] void sharding(const Net& net, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  DistributedDataParallel ddp(net);
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  optim::StepLR scheduler(optimizer, 30, 0.1);
  optimizer.zero_grad();
  loss_of(ddp->forward(x), y).backward();
  optimizer.step();
}

[[maybe_unused]] void sharding_header(const Net& net, const torch::Tensor& loss) {
  DistributedDataParallel ddp(net);
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  loss.backward();
  optimizer.step();
}

[[maybe_unused]] void sharing(const Net& net, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  DistributedDataParallel ddp(net);
  SharedStep<torch::optim::AdamW> optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3), {.fused = true});
  optimizer.zero_grad();
  loss_of(ddp->forward(x), y).backward();
  optimizer.step();
}

[[maybe_unused]] void sharing_in_one_pass(const Net& net) {
  DistributedDataParallel ddp(net);
  ddp.register_comm_hook(make_noop_hook());
  SharedStep<torch::optim::AdamW> optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3),
                                            {.fused = true, .average_gradients = true, .max_norm = 1.0});
}

[[maybe_unused]] void sharing_header(const Net& net, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  lockstep::DistributedDataParallel ddp(net);
  lockstep::SharedStep<torch::optim::AdamW> optimizer(ddp.parameters(), torch::optim::AdamWOptions(1e-3));
  optimizer.zero_grad();
  loss_of(ddp->forward(x), y).backward();
  optimizer.step();
}

using Adam = ZeroRedundancyOptimizer<torch::optim::Adam>;

[[maybe_unused]] void saving(Adam& optimizer) {
  optimizer.consolidate_state_dict(/*to=*/0);
  if (get_rank() == 0) torch::save(optimizer, "optimizer.pt");
}

[[maybe_unused]] void loading(Adam& optimizer) {
  torch::load(optimizer, "optimizer.pt");
}

[[maybe_unused]] void to_checkpoint(Adam& optimizer, Checkpoint& state) {
  optimizer.consolidate_state_dict(0);
  if (get_rank() == 0) state.add_optimizer(optimizer.consolidated());
}

[[maybe_unused]] void from_checkpoint(Adam& optimizer, DistributedDataParallel<Net>& ddp, const Checkpoint& state) {
  torch::optim::Adam plain(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  state.restore_optimizer(plain);
  optimizer.load_consolidated(plain);
}

using MyOptions = torch::optim::SGDOptions;
struct MyOptimizer : torch::optim::SGD {
  MyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const std::vector<double>& table)
      : SGD(groups, MyOptions(table.front())) {}
};

[[maybe_unused]] void own_optimizer(DistributedDataParallel<Net>& ddp, const std::vector<double>& table) {
  ShardedOptimizer optimizer({torch::optim::OptimizerParamGroup(ddp.parameters())}, std::make_unique<MyOptions>(0.1),
                             [&](std::vector<torch::optim::OptimizerParamGroup> groups) {
                               return std::make_unique<MyOptimizer>(groups, table);
                             });
}

}  // namespace
}  // namespace lockstep
