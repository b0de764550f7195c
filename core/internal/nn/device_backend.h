// The few c10d calls that nn makes, on the backend of a tensor's device: the CPU engine, NCCL, MPI or another.
#pragma once

#include <torch/types.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "flight/ring.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

class GroupBackend;

namespace nn_detail {

class DeviceBackend {
 public:
  // Throws where this rank is no member of the group (null: the world).
  DeviceBackend(const ProcessGroup& group, torch::Device device);
  // For what is sent before the ranks know whether their tensors are alike: the CPU's backend, which serves every rank.
  // A group without one (NCCL alone): that of `device`, or of a device that the group serves if it does not serve this
  // one, because the other ranks would wait for a rank that refuses here.
  static DeviceBackend for_host_data(const ProcessGroup& group, torch::Device device);

  std::string name() const { return backend_->getBackendName(); }
  int rank() const { return backend_->getRank(); }
  int world_size() const { return backend_->getSize(); }
  const torch::Device& device() const { return device_; }
  // Says so if reconfigure() has formed the group anew since. A wrapper of one rank calls no collective that would.
  Status replaced() const;
  // Whether collectives of this device are work of its streams, so that waiting for them does not hold up the program.
  bool orders_by_stream() const { return orders_by_stream_; }

  // A flat tensor of zeros. If the backend has memory that collectives use without a copy, it is there.
  torch::Tensor allocate(std::int64_t elements, torch::Dtype dtype) const;

  // Starts an all-reduce that makes `flat` the mean over ranks. For backends without AVG it divides first.
  c10::intrusive_ptr<c10d::Work> start_mean(const torch::Tensor& flat) const;
  c10::intrusive_ptr<c10d::Work> start_sum(const torch::Tensor& flat) const;
  c10::intrusive_ptr<c10d::Work> start_max(const torch::Tensor& flat) const;
  c10::intrusive_ptr<c10d::Work> start_broadcast(const torch::Tensor& tensor, int root) const;
  void broadcast(const torch::Tensor& tensor, int root) const;
  // [world_size, n] from the [n] of every rank.
  torch::Tensor all_gather(const torch::Tensor& flat) const;
  // The flat tensor of every rank; lengths may differ.
  std::vector<torch::Tensor> all_gather_uneven(const torch::Tensor& flat) const;
  // parts[r] becomes that of rank r. Each rank knows all sizes, which may differ.
  void all_gather_parts(std::vector<torch::Tensor> parts) const;
  void send_bytes(const std::string& bytes, int to) const;
  std::string receive_bytes(int from) const;

 private:
  // Through the seam of all calls (c10d/backend/backend_call.h).
  template <typename Run, typename... Tensors>
  c10::intrusive_ptr<c10d::Work> call(flight::Op op, bool async, int root, const Run& run,
                                      const Tensors&... tensors) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::weak_intrusive_ptr<c10d::ProcessGroup> hooks_of_;  // the program's group, whose hooks fire
  const GroupBackend* ours_;                              // backend_, if it is one of this library's
  torch::Device device_;
  bool has_avg_;
  bool orders_by_stream_;
};

}  // namespace nn_detail
}  // namespace lockstep
