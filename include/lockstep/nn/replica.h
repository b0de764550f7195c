// Replica: the part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  // The device that the module is on: forward() moves its inputs there. Empty: inputs stay where they are. Any other
  // device is an error.
  std::vector<torch::Device> device_ids = {};
  // Must be the module's device too: outputs stay where they are computed.
  std::optional<torch::Device> output_device = std::nullopt;
  ProcessGroup process_group = nullptr;  // null: the world
  // Off: each rank keeps its own buffers (running means of batch normalisation).
  bool broadcast_buffers = true;
  double bucket_cap_mb = 25;
  // Has no effect, as unused parameters always work, at no cost. For programs that come from PyTorch.
  bool find_unused_parameters = false;
  // Promises that every pass uses the same parameters; a pass that does not is an error that names them.
  bool static_graph = false;
  // Off: gradients are copied out of the buckets, which takes twice the memory.
  bool gradient_as_bucket_view = true;
};

class Replica {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Each parameter once, even if it is registered under several names.
  std::vector<torch::Tensor> parameters() const;
  void before_forward();
  // Where inputs are moved to; none: they stay where they are.
  std::optional<torch::Device> input_device() const;
  void set_synchronise(bool synchronise) { synchronise_ = synchronise; }
  bool synchronises() const { return synchronise_; }
  void begin_join();
  void finish_join();
  void cancel_join();
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  const Reducer& reducer() const { return *reducer_; }

 private:
  int world_size() const;
  void check_devices() const;
  void synchronise_state(int source);
  void build_reducer();
  bool parameters_changed() const;
  // In a join: tells all ranks whether this one still has inputs. Returns how many ranks have.
  int exchange_activity(bool active);

  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelOptions options_;
  std::vector<NamedParameter> known_;                // those that require a gradient, when the reducer was built
  std::vector<torch::TensorOptions> known_options_;  // converted parameters lose their hooks
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<CommHook> comm_hook_;
  bool synchronise_ = true;
  bool joining_ = false;
  int last_active_ = 0;  // lowest rank that still had inputs, at the last exchange
};

class NoSyncGuard {
 public:
  explicit NoSyncGuard(Replica& replica) : replica_(replica), before_(replica.synchronises()) {
    replica_.set_synchronise(false);
  }
  ~NoSyncGuard() { replica_.set_synchronise(before_); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  Replica& replica_;
  bool before_;
};

}  // namespace lockstep
