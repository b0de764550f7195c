// Training under DistributedDataParallel on a device or the CPU, in the ways that the wrapper offers.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/conv_net.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/distributed_data_parallel.h"

namespace lockstep::test {

struct Variant {
  DistributedDataParallelOptions options = {};
  bool accumulate = false;  // every other pass without communication
  bool partly = false;      // rank 0 leaves a layer out
  bool own_group = false;   // beside the world
  std::shared_ptr<CommHook> (*hook)() = nullptr;
  std::function<void()> before_backward = [] {};
  std::function<void()> after_step = [] {};
};

inline std::vector<std::pair<const char*, Variant>> variants() {
  return {
      {"plain", {}},
      {"many buckets", {.options = {.bucket_cap_mb = 0.001}}},
      {"copies of gradients", {.options = {.gradient_as_bucket_view = false}}},
      {"own buffers", {.options = {.broadcast_buffers = false}}},
      {"accumulated", {.accumulate = true}},
      {"partly used", {.partly = true}},
      {"unused are looked for", {.options = {.find_unused_parameters = true}, .partly = true}},
      {"static graph", {.options = {.static_graph = true}}},
      {"weights of their own", {.options = {.init_sync = false}}},
      {"ignored", {.options = {.ignored_parameters = {"hidden.weight"}}}},
      {"a group of its own", {.own_group = true}},
  };
}

// Six steps under DistributedDataParallel. All ranks start with weights of their own, and draw data of their own.
inline State train(torch::Device device, int rank, Variant variant) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  if (!device.is_cpu()) variant.options.device_ids = {device};
  if (variant.own_group) variant.options.process_group = new_group();
  DistributedDataParallel<ConvNet> ddp(net, variant.options);
  if (variant.hook != nullptr) ddp.register_comm_hook(variant.hook());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 6; ++step) {
    if (!variant.accumulate || step % 2 == 0) optimizer.zero_grad();
    const auto pass = [&] {
      ddp->is_training();  // operator-> begins the pass
      const torch::Tensor loss = loss_on(net, device, !variant.partly || rank != 0);
      variant.before_backward();
      loss.backward();
    };
    if (variant.accumulate && step % 2 == 0) {
      const auto alone = ddp.no_sync();
      pass();
      continue;
    }
    pass();
    optimizer.step();
    variant.after_step();
  }
  return state_of(net);
}

}  // namespace lockstep::test
