// Replica: the part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/join.h"
#include "lockstep/nn/reducer.h"

namespace lockstep {

namespace nn_detail {
class ModuleWatch;
}

// A parameter or buffer of a module, by its name ("embedding.weight") or by the tensor itself.
struct IgnoredTensor {
  IgnoredTensor(std::string the_name) : name(std::move(the_name)) {}          // NOLINT: implicit on purpose
  IgnoredTensor(const char* the_name) : name(the_name) {}                     // NOLINT
  IgnoredTensor(torch::Tensor the_tensor) : tensor(std::move(the_tensor)) {}  // NOLINT
  std::string name;
  torch::Tensor tensor;
};

struct DistributedDataParallelOptions {
  // The device that the module is on: forward() moves its inputs there. Empty: inputs stay where they are. Any other
  // device is an error.
  std::vector<torch::Device> device_ids = {};
  // Must be the module's device too: outputs stay where they are computed.
  std::optional<torch::Device> output_device = std::nullopt;
  ProcessGroup process_group = nullptr;  // null: the world
  // Off: each rank keeps its own buffers (running means of batch normalisation).
  bool broadcast_buffers = true;
  // The largest bucket, MiB; the first one is at most 1 MiB, so that communication starts early. The same on every
  // rank.
  double bucket_cap_mb = 25;
  // Has no effect, as unused parameters always work, at no cost. For programs that come from PyTorch.
  bool find_unused_parameters = false;
  // Promises that every pass uses the same parameters; a pass that does not is an error that names them.
  bool static_graph = false;
  // Off: gradients are copied out of the buckets, which takes twice the memory.
  bool gradient_as_bucket_view = true;
  // Parameters and buffers that each rank keeps for itself: they are not compared, not sent and not reduced, and may
  // differ in shape or be on another device. A tensor with several names is ignored under all of them. PyTorch:
  // _set_params_and_buffers_to_ignore_for_model.
  std::vector<IgnoredTensor> ignored_parameters = {};
  // Off: rank 0's values are not sent at construction, for models that are equal already, such as after all ranks have
  // loaded the same file. They are not compared; shapes are.
  bool init_sync = true;
};

// While a guard lives, passes of its wrapper send nothing. A guard may be moved and kept, for example in a
// std::optional, and may outlive the wrapper.
class [[nodiscard]] NoSyncGuard {
 public:
  // Null: the guard has no effect.
  explicit NoSyncGuard(std::shared_ptr<const void> guarding) : guarding_(std::move(guarding)) {}

 private:
  std::shared_ptr<const void> guarding_;  // the wrapper counts its owners
};

class Replica {
 public:
  // What `module` throws is an error on every rank, like everything that one rank alone gets wrong.
  Replica(const std::function<std::shared_ptr<torch::nn::Module>()>& module,
          const DistributedDataParallelOptions& options, CallSite site);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Those that the model has now. Each parameter once, even if it is registered under several names.
  std::vector<torch::Tensor> parameters() const;
  void before_forward();
  // Before a method of the module: a forward pass, or something else, such as train().
  void before_method();
  // Lives during a call of the module, after before_forward() or before_method(). Notices whether the call has computed
  // something that a backward pass should follow.
  class Call {
   public:
    // `is_forward`: whether the call certainly is a forward pass. Any other call counts as a forward pass if it has
    // made a graph.
    Call(Replica& replica, bool is_forward);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Replica& replica_;
    const bool is_forward_;
    const std::uint64_t nodes_before_;  // how many nodes of autograd graphs this thread has made
    const int exceptions_before_;
  };
  // The device to which inputs are moved; none: inputs stay where they are.
  std::optional<torch::Device> input_device() const;
  NoSyncGuard no_sync(bool enable);
  void pass_without_input();
  void begin_join(const JoinOptions& options);
  void finish_join();
  void cancel_join() { end_join(); }
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  const Reducer& reducer() const { return *reducer_; }
  const ProcessGroup& process_group() const { return options_.process_group; }

 private:
  int world_size() const;
  torch::Device device() const;
  void check_devices() const;
  std::string own_lines();
  void refuse_other_ranks(const std::vector<NamedParameter>& trained) const;
  void take_own_groups();
  void synchronise_state(int source, bool send);
  void build_reducer();
  // What is not ignored, without names.
  struct Tensors {
    std::vector<torch::Tensor> parameters;  // each once
    std::vector<torch::Tensor> buffers;     // the buffers that are sent
  };
  // What a conversion changes. Nothing of it counts for an undefined tensor. (TensorOptions take longer to compare.)
  struct TensorType {
    explicit TensorType(const torch::Tensor& tensor);
    bool operator==(const TensorType&) const = default;
    caffe2::TypeMeta dtype = {};
    torch::Device device = torch::kCPU;
    torch::Layout layout = torch::kStrided;
  };
  Tensors tensors_of_module() const;
  std::vector<torch::Tensor> buffers_of_module() const;
  const Tensors& present_tensors();
  bool module_changed(const Tensors& now) const { return parameters_changed(now) || buffers_changed(now); }
  bool parameters_changed(const Tensors& now) const;
  bool buffers_changed(const Tensors& now) const;
  // The buffers that are sent, if a forward pass has put others in their place; else none.
  std::vector<torch::Tensor> take_replaced_buffers();
  void take_changed_module();
  void refuse_change_in_join() const;
  // In a join: tells all ranks whether this rank still has inputs. Returns which ranks have inputs.
  std::vector<int> exchange_activity(bool active, bool continues_pass = false);
  void refuse_collectives_in_forward() const;
  void prepare_pass();
  void start_joined_pass();
  void prepare_joined_pass(const std::vector<int>& active);
  void shadow_pass(const std::vector<int>& active);
  // In a join with throw_on_early_termination the ranks meet once before each pass. A rank without more inputs meets
  // the others at the end of its loop, and then all ranks throw.
  bool throws_where_uneven() const;
  void meet_before_pass();
  void owe_meeting();  // before this thread communicates next
  void throw_if_uneven(bool active);
  void end_join();

  const CallSite site_;
  std::shared_ptr<torch::nn::Module> module_;
  std::exception_ptr no_module_;  // why module_ is null
  DistributedDataParallelOptions options_;
  ProcessGroup group_;                           // the wrapper's own group, beside options_.process_group
  std::optional<c10::DeviceType> group_is_for_;  // empty: group_ still is options_.process_group
  std::set<std::string> ignored_;                // names
  std::vector<NamedParameter> known_;            // the trained parameters, when the reducer was built
  std::vector<TensorType> known_types_;          // converted parameters lose their hooks
  // The buffers that were sent then. A converted buffer is packed in another dtype.
  std::vector<std::pair<torch::Tensor, TensorType>> known_buffers_;
  const std::shared_ptr<nn_detail::ModuleWatch> watch_;
  std::optional<Tensors> present_;  // the module's tensors when present_tensors() last looked
  std::unique_ptr<Reducer> reducer_;
  std::shared_ptr<CommHook> comm_hook_;
  const std::shared_ptr<const void> guards_ = std::make_shared<char>();  // all other owners are guards
  std::shared_ptr<const JoinOptions> join_;                              // in a join
  bool owes_meeting_ = false;
  int last_active_ = 0;  // highest rank that still had inputs, at the last exchange
};

}  // namespace lockstep
