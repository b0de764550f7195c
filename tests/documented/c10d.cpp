// Code of docs/process_groups.md, docs/backends.md, docs/errors.md and of the headers of c10d, as it stands there.
#include <torch/torch.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/c10d/device_mesh.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/prefix_store.h"
#include "net.h"

namespace lockstep {
namespace {

[[maybe_unused]] void groups(int rank, const torch::Tensor& tensor) {
  ProcessGroup front = new_group({0, 1});
  ProcessGroup half = split_group(rank % 2);
  ProcessGroup by_key = split_group(0, -rank);
  ProcessGroup machine = new_subgroups(4);
  ProcessGroup stride = new_subgroups_by_enumeration({{0, 2}, {1, 3}});
  ProcessGroup all = new_group({.timeout = std::chrono::seconds(20), .backend = "cpu:lockstep"});
  all_reduce(tensor, {.op = c10d::ReduceOp::AVG, .group = half});
  destroy_process_group(half);
}

[[maybe_unused]] void survive(int steps, const std::function<void(int step)>& train,
                              const std::function<void()>& wrap_model_again) {
  init_process_group("", {.enable_reconfigure = true});
  bool go_on = true;
  for (int step = 0; step < steps;) {
    try {
      if (!go_on) {
        reconfigure();
        wrap_model_again();
        torch::Tensor next = torch::tensor({step});
        all_reduce(next, {.op = c10d::ReduceOp::MIN});
        step = next.item<int>();
        go_on = true;
      }
      train(step);
      ++step;
    } catch (const std::exception& e) {
      if (error_code(e) != ErrorCode::kPeerFailed && error_code(e) != ErrorCode::kAborted) throw;
      go_on = false;
    }
  }
}

[[maybe_unused]] void with_handles(const std::string& first, const std::string& third, const ProcessGroup& half) {
  std::string mine = get_reconfigure_handle();
  reconfigure({.handles = {first, mine, third}, .uuid = 7});
  ProcessGroup fewer = reconfigure({}, half);
}

[[maybe_unused]] int meshes() {
  DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 2, 3}, {"dp", "pp", "tp"});
  ProcessGroup replicas = mesh.get_group("dp");
  const int part = mesh.get_local_rank("tp");
  std::optional<std::vector<int>> place = mesh.get_coordinate();
  DeviceMesh outer = mesh[{"dp", "pp"}];
  DeviceMesh shards = outer.flatten();
  return part;
}

[[maybe_unused]] int messages(const torch::Tensor& tensor) {
  send(tensor, 1, {.tag = 7});
  const int sender = recv(tensor, kAnySource, {.tag = 7});
  Work work = irecv(tensor, 1, {.tag = 7});
  work->wait();
  return sender;
}

[[maybe_unused]] void batches(const torch::Tensor& mine, int next, const torch::Tensor& theirs, int previous) {
  std::vector<PointToPoint> batch{{PointToPoint::Kind::kSend, mine, next},
                                  {PointToPoint::Kind::kReceive, theirs, previous}};
  for (const Work& request : batch_isend_irecv(batch)) request->wait();
}

[[maybe_unused]] void coalesced(const torch::Tensor& weights, const torch::Tensor& bias,
                                const std::vector<torch::Tensor>& inputs, const std::vector<torch::Tensor>& outputs,
                                const std::vector<torch::Tensor>& shares) {
  all_reduce_coalesced({weights, bias});
  std::vector<std::vector<torch::Tensor>> parts;
  all_gather_coalesced(parts, inputs);
  all_gather_into_tensor_coalesced(outputs, inputs);
  reduce_scatter_tensor_coalesced(shares, outputs);
}

[[maybe_unused]] void waiting(const torch::Tensor& tensor) {
  Work reduction = all_reduce_async(tensor, {.timeout = std::chrono::seconds(10)});
  reduction->wait();
  reduction->wait(std::chrono::milliseconds(500));
  auto future = reduction->getFuture();
  monitored_barrier({.timeout = std::chrono::seconds(20), .wait_all_ranks = true});
}

[[maybe_unused]] void objects(int rank, std::string (*make_run_folder)(), const std::map<std::string, double>& metrics,
                              torch::nn::Linear& model, torch::optim::SGD& optimizer) {
  std::string folder = rank == 0 ? make_run_folder() : "";
  broadcast_object(folder, 0);
  std::vector<std::map<std::string, double>> all = all_gather_object(metrics);
  broadcast_object(model, 0);
  broadcast_object(optimizer, 0);
}

[[maybe_unused]] int object_messages(const std::map<std::string, double>& metrics, const std::string& folder) {
  send_object(std::make_tuple(metrics, folder), 1, {.tag = 2});
  std::tuple<std::map<std::string, double>, std::string> received;
  const int sender = recv_object(received, kAnySource, {.tag = 2});
  return sender;
}

[[maybe_unused]] void stores() {
  auto store = comm::FileStore::open("/shared/job7");
  auto number = store.value()->add("processes", 1);
  Status status = store.value()->set("greeting", "hello");
  auto greeting = store.value()->get("greeting", Deadline::after(std::chrono::seconds(10)));
  comm::PrefixStore mine("my part", store.value());
}

[[maybe_unused]] void backends(Net& model, const torch::Tensor& loss_on_the_cpu) {
  const std::string backend = "";
  lockstep::ProcessGroupGuard group(backend);
  const auto device = lockstep::local_device();
  model->to(device);
  lockstep::DistributedDataParallel<Net> ddp(model);
  lockstep::all_reduce(loss_on_the_cpu);
}

[[maybe_unused]] void errors(const torch::Tensor& t, void (*save_checkpoint)()) {
  try {
    lockstep::all_reduce(t);
  } catch (const std::exception& e) {
    if (lockstep::error_code(e) == lockstep::ErrorCode::kPeerFailed) save_checkpoint();
    throw;
  }
}

// --- Headers

[[maybe_unused]] torch::Device cuda_header() {
  lockstep::load_cuda();
  const lockstep::ProcessGroupGuard group;
  const torch::Device device = lockstep::local_device();
  return device;
}

[[maybe_unused]] void collectives_header(const torch::Tensor& t, const ProcessGroup& g) {
  lockstep::all_reduce(t);
  lockstep::all_reduce(t, {.op = c10d::ReduceOp::AVG, .group = g});
  auto work = lockstep::all_reduce_async(t);
  work->wait();
}

[[maybe_unused]] void device_mesh_header(const torch::Tensor& gradient,
                                         const std::shared_ptr<const data::Dataset>& dataset) {
  using data::DataLoader;
  DeviceMesh mesh = init_device_mesh(torch::kCPU, {2, 3}, {"dp", "tp"});
  all_reduce(gradient, {.group = mesh.get_group("dp")});
  DataLoader loader(dataset, {.batch_size = 64, .group = mesh.get_group("dp")});
  DeviceMesh tp = mesh["tp"];
}

[[maybe_unused]] void objects_header(int rank, std::string (*make_run_folder)(),
                                     const std::map<std::string, double>& mine) {
  std::string path = rank == 0 ? make_run_folder() : "";
  lockstep::broadcast_object(path, 0);
  std::vector<std::map<std::string, double>> metrics = lockstep::all_gather_object(mine);
}

}  // namespace
}  // namespace lockstep
