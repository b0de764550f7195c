// The methods of ProcessGroupLockstep that send and receive.
#include "c10d/collective_call.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

using Message = PointToPointBackend::Message;

c10d::OpType receive_type(const Message& message) {
  return message.peer == comm::kAnySource ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
}

void check_send_with(const CallChecks& checks, const Message& message) {
  checks.check_readable(message.tensor, "tensor");
  checks.check_peer(message.peer, "destination");
  checks.check_tag(message.tag);
}

void check_receive_with(const CallChecks& checks, const Message& message) {
  checks.check_writable(message.tensor, "tensor");
  if (message.peer != comm::kAnySource) checks.check_peer(message.peer, "source");
  checks.check_tag(message.tag);
}

void submit_send(CollectiveCall& call, const Message& message) {
  check_send_with(call, message);
  call.submit(comm::Send{call.input(message.tensor, "tensor"), message.peer, message.tag});
}

void submit_receive(CollectiveCall& call, const Message& message) {
  check_receive_with(call, message);
  call.submit(comm::Receive{call.output(message.tensor, "tensor"), message.peer, message.tag});
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  const CallChecks checks(core_->who(), "send", size_);
  return send_async({checks.only(tensors, "tensors", "takes a single tensor"), destination, tag});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const CallChecks checks(core_->who(), "recv", size_);
  checks.check_peer(source, "source");
  return receive_async({checks.only(tensors, "tensors", "takes a single tensor"), source, tag});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const CallChecks checks(core_->who(), "recv", size_);
  return receive_async({checks.only(tensors, "tensors", "takes a single tensor"), comm::kAnySource, tag});
}

void ProcessGroupLockstep::check_send(const Message& message) const {
  check_send_with(CallChecks(core_->who(), "send", size_), message);
}

void ProcessGroupLockstep::check_receive(const Message& message) const {
  check_receive_with(CallChecks(core_->who(), "recv", size_), message);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::send_async(const Message& message) {
  CollectiveCall call(core_, "send", {c10d::OpType::SEND, Blocking::kNo, timeout_or_default(message.timeout)},
                      message.tensor);
  submit_send(call, message);
  return call.work({message.tensor});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::receive_async(const Message& message) {
  CollectiveCall call(core_, "recv", {receive_type(message), Blocking::kNo, timeout_or_default(message.timeout)},
                      message.tensor);
  submit_receive(call, message);
  return call.work({message.tensor});
}

void ProcessGroupLockstep::send_blocking(const Message& message) {
  CollectiveCall call(core_, "send", {c10d::OpType::SEND, Blocking::kYes, timeout_or_default(message.timeout)},
                      message.tensor);
  submit_send(call, message);
}

int ProcessGroupLockstep::receive_blocking(const Message& message) {
  // Only a started operation can tell who the sender was.
  if (message.peer == comm::kAnySource) return PointToPointBackend::receive_blocking(message);
  CollectiveCall call(core_, "recv", {receive_type(message), Blocking::kYes, timeout_or_default(message.timeout)},
                      message.tensor);
  submit_receive(call, message);
  call.work({});
  return message.peer;
}

}  // namespace lockstep
