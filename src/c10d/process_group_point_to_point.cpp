// The methods of ProcessGroupLockstep that send and receive.
#include "c10d/collective_call.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

comm::Send send_args(CollectiveCall& call, const at::Tensor& tensor, int destination, int tag) {
  return {call.input(tensor, "tensor"), destination, tag};
}

comm::Receive receive_args(CollectiveCall& call, const at::Tensor& tensor, int source, int tag) {
  return {call.output(tensor, "tensor"), source, tag};
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  CollectiveCall call(core_, "send", {c10d::OpType::SEND, Blocking::kNo, timeout_.load()}, tensors);
  call.submit(send_args(call, call.only(tensors, "tensors"), destination, tag));
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  CollectiveCall call(core_, "recv", {c10d::OpType::RECV, Blocking::kNo, timeout_.load()}, tensors);
  if (source < 0) call.reject("the source must be a rank of the group, 0 to {}, found {}", size_ - 1, source);
  call.submit(receive_args(call, call.only(tensors, "tensors"), source, tag));
  return call.work(tensors);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  CollectiveCall call(core_, "recv", {c10d::OpType::RECVANYSOURCE, Blocking::kNo, timeout_.load()}, tensors);
  call.submit(receive_args(call, call.only(tensors, "tensors"), comm::kAnySource, tag));
  return call.work(tensors);
}

void ProcessGroupLockstep::send_blocking(const at::Tensor& tensor, int destination, int tag,
                                         std::chrono::milliseconds timeout) {
  CollectiveCall call(core_, "send", {c10d::OpType::SEND, Blocking::kYes, timeout_or_default(timeout)}, tensor);
  call.submit(send_args(call, tensor, destination, tag));
}

int ProcessGroupLockstep::recv_blocking(const at::Tensor& tensor, int source, int tag,
                                        std::chrono::milliseconds timeout) {
  if (source != comm::kAnySource) {
    CollectiveCall call(core_, "recv", {c10d::OpType::RECV, Blocking::kYes, timeout_or_default(timeout)}, tensor);
    call.submit(receive_args(call, tensor, source, tag));
    call.work({});
    return source;
  }
  // Only a started operation can tell who the sender was.
  std::vector<at::Tensor> tensors = {tensor};
  const auto work = recvAnysource(tensors, tag);
  work->wait(timeout_or_default(timeout));
  return work->sourceRank();
}

}  // namespace lockstep
