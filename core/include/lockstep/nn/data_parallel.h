// DataParallel: one process trains on several devices, or on several replicas of a model on the CPU's cores.
//
//   Net net;                                                            // a torch::nn::Cloneable
//   lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = 2});     // or {.device_ids = {...}}
//   torch::optim::SGD optimizer(parallel.parameters(), 0.01);
//   ...
//   optimizer.zero_grad();
//   loss_of(parallel.forward(x), y).backward();   // each replica works on a part of x; gradients are summed
//   optimizer.step();
//
// A forward pass splits the tensors of its arguments (lockstep/nn/scatter.h says which values can be split, and how),
// runs one replica of the module for each part in a thread of its own, and puts the results together on
// `output_device`. The backward pass runs in the same threads. Gradients end in the module's own parameters, as if
// one device had seen the whole batch, but for rounding. Semantics are those of torch.nn.DataParallel, with these
// differences:
//   - Threads and replicas are made once, not in every pass.
//   - DataParallel works on the CPU. There the replicas use the module's own parameter memory, and each replica is
//     bound to its share of the cores that this process may use.
//   - Tensors with different numbers of rows are an error; PyTorch silently drops rows.
//   - A backward pass of a backward pass (create_graph) works, as do several passes before an optimizer step.
//
// What differs from one device, as in PyTorch: each replica normalises its own part of a batch (BatchNorm), and only
// the first replica's buffers are kept. In a world of several ranks, layers that synchronise their batches are refused,
// unless there is one device. A result without dimensions, such as a loss, becomes a vector with an element for each
// replica that ran: call mean() on it. CPU replicas draw random numbers (Dropout) from one generator in the order of
// their calls, so runs differ. If forward() writes to members of the module other than buffers, the values are lost.
//
// The module stays usable: module() has its own type, its parameters stay the same tensors, names get no prefix.
// Training mode, `requires_grad`, values, devices and dtypes of the module are taken over in each pass, and so are
// submodules that were added or replaced. Other members are not taken over: call renew_replicas() after a change. With
// one device the module itself runs, without threads.
//
// Replicas are made by the module's clone(). Modules that derive from torch::nn::Cloneable and register everything in
// reset() have it. For other modules give a function that makes a module of the same structure:
//   lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = 2}, [] { return Net(); });
//
// Errors: c10::Error. forward() or backward() throws a replica's exception after all replicas have ended, with the
// replica and its device in front ("in replica 1 on cpu:1"). std::bad_alloc stays std::bad_alloc; any other exception
// that is no c10::Error is nested in a c10::Error. Threads: one pass at a time, as for the module. The threads end when
// the wrapper and the graphs of its passes are destroyed.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/nn/as_module.h"
#include "lockstep/nn/module_of.h"
#include "lockstep/nn/scatter.h"

namespace lockstep {

struct DataParallelOptions {
  // One replica on each device. All devices have one type; the module must be on the first. torch::kCPU may be listed
  // several times, for that many CPU replicas. Empty: all devices of the module's type, or `cpu_replicas` on the CPU.
  std::vector<torch::Device> device_ids = {};
  // Where results are put together. Default: the first of device_ids.
  std::optional<torch::Device> output_device = std::nullopt;
  std::int64_t dim = 0;  // the dimension along which inputs are split and results put together
  // The number of replicas of a module on the CPU, in place of device_ids. More replicas than cores gain nothing.
  int cpu_replicas = 1;
  // Threads with which an operator works within one CPU replica. 0: as many as the replica has cores.
  int threads_per_replica = 0;
};

namespace nn_detail {

// The part of DataParallel that does not depend on the module's type.
class ReplicaSet {
 public:
  using Factory = std::function<std::shared_ptr<torch::nn::Module>()>;
  // `factory`: null for clone().
  ReplicaSet(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options, Factory factory);
  ~ReplicaSet();
  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  std::size_t size() const { return devices_.size(); }
  const std::vector<torch::Device>& devices() const { return devices_; }
  torch::Device output_device() const { return output_device_; }
  std::vector<torch::Tensor> parameters() const;
  void renew();
  // Throws if a parameter or buffer is not on the first device.
  void check_module() const;

  // Runs in the thread of a replica: calls `module` with `inputs`, returns the tensors of its result.
  using Body = std::function<std::vector<torch::Tensor>(std::size_t index, torch::nn::Module& module,
                                                        const std::vector<torch::Tensor>& inputs)>;
  // Called when all of `count` replicas have ended. Checks that their results fit together, and returns the names of
  // the results' tensors.
  using Check = std::function<std::vector<std::string>(std::size_t count)>;
  // The tensors of the result as a whole.
  std::vector<torch::Tensor> run(const parallel::detail::Tensors& inputs, const Body& body, const Check& check);

 private:
  struct State;
  std::vector<torch::Device> devices_;
  torch::Device output_device_ = torch::kCPU;
  std::unique_ptr<State> state_;
};

// The results of the replicas of one pass.
template <typename Result>
class Results {
 public:
  explicit Results(std::size_t count) : results_(count) {}
  std::vector<torch::Tensor> store(std::size_t index, Result result) {
    results_[index].emplace(std::move(result));
    return parallel::detail::collect(*results_[index], path()).tensors;
  }
  std::vector<std::string> check(std::size_t count) {
    for (std::size_t i = 1; i < count; ++i) parallel::detail::check_same(*results_[0], *results_[i], i, path());
    return parallel::detail::collect(*results_[0], path()).names;
  }
  Result take(const std::vector<torch::Tensor>& tensors) {
    parallel::detail::replace(*results_[0], tensors);
    return std::move(*results_[0]);
  }

 private:
  static parallel::detail::Path path() { return {nullptr, "result"}; }
  std::vector<std::optional<Result>> results_;
};

}  // namespace nn_detail

template <typename Net>
class DataParallel {
 public:
  using Module = typename nn_detail::ModelOf<Net>::type;

  // Makes the replicas and their threads.
  explicit DataParallel(Net net, const DataParallelOptions& options = {})
      : net_(std::move(net)), module_(nn_detail::pointer_to(net_)), replicas_(as_module(module_), options, nullptr) {}
  // `make()` returns a module of the same structure: a Net, or a shared_ptr to the module.
  template <typename Make>
  requires std::is_invocable_v<Make&> DataParallel(Net net, const DataParallelOptions& options, Make make)
      : net_(std::move(net)),
        module_(nn_detail::pointer_to(net_)),
        replicas_(as_module(module_), options, factory(make)) {}
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The module's own forward, with any arguments and result. Without a tensor to split, the first replica runs alone.
  template <typename... Args>
  auto forward(Args&&... args) {
    static_assert(!std::is_base_of_v<torch::jit::Module, Module>,
                  "DataParallel splits tensors, not IValues: call apply() with a function that takes tensors and calls "
                  "the torch::jit::Module");
    return apply(
        [](Module& module, auto&&... values) -> decltype(auto) {
          return module.forward(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // Any other entry: function(module, args...) runs on each replica. `function` may be a method:
  // parallel.apply(&NetImpl::training_step, batch).
  template <typename Function, typename... Args>
  auto apply(Function&& function, Args&&... args);

  // The module itself: for evaluation, for saving, for everything but training steps.
  Net& module() { return net_; }
  const Net& module() const { return net_; }
  // For the optimizer: each parameter once, even if layers share it.
  std::vector<torch::Tensor> parameters() const { return replicas_.parameters(); }
  // The device of each replica, in order.
  const std::vector<torch::Device>& devices() const { return replicas_.devices(); }
  // Makes new replicas of the module as it is now.
  void renew_replicas() { replicas_.renew(); }

 private:
  template <typename Make>
  static nn_detail::ReplicaSet::Factory factory(Make make) {
    return [make]() mutable -> std::shared_ptr<torch::nn::Module> {
      using Made = std::decay_t<decltype(make())>;
      if constexpr (std::is_base_of_v<torch::nn::Module, Made>) {
        return std::make_shared<Made>(make());
      } else {
        Made made = make();
        return as_module(made);
      }
    };
  }
  static Module& replica_of(torch::nn::Module& replica) {
    if constexpr (std::is_base_of_v<torch::jit::Module, Module>) {
      return nn_detail::scripted_of(replica);
    } else {
      static_assert(std::is_base_of_v<torch::nn::Module, Module>,
                    "DataParallel makes copies of the model, and cannot copy one of this type: expected a "
                    "torch::nn::Module, not in an AnyModule, or a torch::jit::Module");
      return dynamic_cast<Module&>(replica);
    }
  }
  template <typename Result, typename Call, typename Inputs>
  Result apply_alone(const Call& call, Inputs& inputs);

  Net net_;
  std::shared_ptr<Module> module_;
  nn_detail::ReplicaSet replicas_;
};

template <typename Net>
DataParallel(Net) -> DataParallel<Net>;
template <typename Net>
DataParallel(Net, DataParallelOptions) -> DataParallel<Net>;
template <typename Net, typename Make>
DataParallel(Net, DataParallelOptions, Make) -> DataParallel<Net>;

template <typename Net>
template <typename Function, typename... Args>
auto DataParallel<Net>::apply(Function&& function, Args&&... args) {
  static_assert((std::is_copy_constructible_v<std::decay_t<Args>> && ...),
                "DataParallel gives each replica a copy of every argument, and one of these cannot be copied");
  std::tuple<std::decay_t<Args>...> inputs(std::forward<Args>(args)...);
  const auto call = [&](Module& module, auto& values) -> decltype(auto) {
    return std::apply(
        [&](auto&... value) -> decltype(auto) {
          return std::invoke(function, module, parallel::detail::pass<Args>(value)...);
        },
        values);
  };
  using Returned = std::decay_t<decltype(call(*module_, inputs))>;
  using Result = std::conditional_t<std::is_void_v<Returned>, std::monostate, Returned>;
  const auto call_for_result = [&](Module& module, auto& values) -> Result {
    if constexpr (std::is_void_v<Returned>) {
      call(module, values);
      return {};
    } else {
      return call(module, values);
    }
  };
  const auto run = [&]() -> Result {
    if (replicas_.size() == 1) return apply_alone<Result>(call_for_result, inputs);
    nn_detail::Results<Result> results(replicas_.size());
    const std::vector<torch::Tensor> outputs = replicas_.run(
        parallel::detail::collect_arguments(inputs),
        [&](std::size_t index, torch::nn::Module& replica, const std::vector<torch::Tensor>& tensors) {
          auto own = inputs;
          parallel::detail::replace(own, tensors);
          return results.store(index, call_for_result(replica_of(replica), own));
        },
        [&](std::size_t count) { return results.check(count); });
    return results.take(outputs);
  };
  if constexpr (std::is_void_v<Returned>) {
    run();
  } else {
    return run();
  }
}

// One device: the module itself runs in this thread. Inputs and results are moved as with several devices.
template <typename Net>
template <typename Result, typename Call, typename Inputs>
Result DataParallel<Net>::apply_alone(const Call& call, Inputs& inputs) {
  replicas_.check_module();
  const auto move_to = [](torch::Device device) {
    return [device](torch::Tensor& tensor, const parallel::detail::Path&) {
      if (tensor.defined()) tensor = tensor.to(device, /*non_blocking=*/device.type() != torch::kCPU);
    };
  };
  parallel::detail::visit(inputs, move_to(replicas_.devices().front()), {});
  Result result = call(*module_, inputs);
  parallel::detail::visit(result, move_to(replicas_.output_device()), {});
  return result;
}

}  // namespace lockstep
