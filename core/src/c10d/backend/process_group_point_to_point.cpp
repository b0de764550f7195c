// The methods of ProcessGroupLockstep that send and receive.
#include "c10d/backend/collective_call.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

using Message = GroupBackend::Message;

c10d::OpType receive_type(const Message& message) {
  return message.peer == comm::kAnySource ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
}

void submit_send(CollectiveCall& call, const Message& message) {
  call.submit(comm::Send{call.input(message.tensor, "tensor"), message.peer, message.tag});
}

void submit_receive(CollectiveCall& call, const Message& message) {
  call.submit(comm::Receive{call.output(message.tensor, "tensor"), message.peer, message.tag});
}

}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::send_async(const Message& message) {
  CollectiveCall call(
      core(), "send",
      {c10d::OpType::SEND, Blocking::kNo, timeout_or_default(message.timeout), message.peer, message.tag},
      message.tensor);
  check_send(message);
  submit_send(call, message);
  return call.work({message.tensor});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::receive_async(const Message& message) {
  CollectiveCall call(
      core(), "recv",
      {receive_type(message), Blocking::kNo, timeout_or_default(message.timeout), message.peer, message.tag},
      message.tensor);
  check_receive(message);
  submit_receive(call, message);
  return call.work({message.tensor});
}

void ProcessGroupLockstep::send_blocking(const Message& message) {
  CollectiveCall call(
      core(), "send",
      {c10d::OpType::SEND, Blocking::kYes, timeout_or_default(message.timeout), message.peer, message.tag},
      message.tensor);
  check_send(message);
  submit_send(call, message);
}

int ProcessGroupLockstep::receive_blocking(const Message& message) {
  // Only a started operation can tell the sender.
  if (message.peer == comm::kAnySource) return GroupBackend::receive_blocking(message);
  CollectiveCall call(
      core(), "recv",
      {receive_type(message), Blocking::kYes, timeout_or_default(message.timeout), message.peer, message.tag},
      message.tensor);
  check_receive(message);
  submit_receive(call, message);
  call.work({});
  return message.peer;
}

}  // namespace lockstep
