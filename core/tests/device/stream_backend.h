// A backend whose collectives are work of a stream, as NCCL's are: a call returns at once, and wait() makes the current
// stream wait, not the program. For the test device alone.
#pragma once

#include <torch/torch.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/c10d/process_groups.h"
#include "support/test_device/memory.h"
#include "support/test_device/streams.h"

namespace lockstep::test {

class StreamBackend final : public c10d::Backend, public BackendCapabilities {
 public:
  // `host`: a group of the same ranks with nothing else to do, whose CPU backend carries the data.
  StreamBackend(const ProcessGroup& host, c10::Device device)
      : Backend(host->getRank(), host->getSize()),
        host_(host->getBackend(torch::kCPU)),
        stream_(device::next_stream(device.index())) {}

  const std::string getBackendName() const override { return "streams"; }
  bool orders_by_stream() const override { return true; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<torch::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return enqueue(tensors, [host = host_, options](std::vector<torch::Tensor> opened) {
      host->allreduce(opened, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<torch::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return enqueue(tensors, [host = host_, options](std::vector<torch::Tensor> opened) {
      host->broadcast(opened, options)->wait();
    });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(torch::Tensor& output, torch::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return enqueue({output, input}, [host = host_, options](std::vector<torch::Tensor> opened) {
      host->_allgather_base(opened[0], opened[1], options)->wait();
    });
  }

 private:
  class StreamWork final : public c10d::Work {
   public:
    StreamWork(device::MarkerPtr done, c10::DeviceIndex device) : done_(std::move(done)), device_(device) {}
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      device::enqueue_wait(device::current_stream(device_), done_);
      return true;
    }

   private:
    device::MarkerPtr done_;
    c10::DeviceIndex device_;
  };

  using Collective = std::function<void(std::vector<torch::Tensor>)>;

  c10::intrusive_ptr<c10d::Work> enqueue(const std::vector<torch::Tensor>& tensors, Collective collective) {
    const c10::DeviceIndex index = stream_.device_index();
    device::enqueue_wait(stream_, device::mark(device::current_stream(index)));
    std::vector<std::function<torch::Tensor()>> places;
    for (const torch::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_contiguous(), "streams: expected a contiguous tensor");
      device::record_use(tensor.storage().data(), stream_);
      places.push_back([address = tensor.const_data_ptr(), sizes = tensor.sizes().vec(), bytes = tensor.nbytes(),
                        options = tensor.options().device(torch::kCPU),
                        index] { return torch::from_blob(device::open(address, bytes, index), sizes, options); });
    }
    device::enqueue(stream_, [places = std::move(places), collective = std::move(collective)] {
      std::vector<torch::Tensor> opened;
      for (const auto& place : places) opened.push_back(place());
      collective(std::move(opened));
    });
    return c10::make_intrusive<StreamWork>(device::mark(stream_), index);
  }

  c10::intrusive_ptr<c10d::Backend> host_;
  c10::Stream stream_;
};

// From now on the world's collectives of tensors on this device are those of a StreamBackend. Collective.
inline void use_stream_backend(c10::Device device) {
  const auto backend = c10::make_intrusive<StreamBackend>(new_group(), device);
  // The type is only a key, which no other backend of the group may have.
  default_group()->setBackend(device.type(), c10d::ProcessGroup::BackendType::UCC, backend);
}

}  // namespace lockstep::test
