// The free functions that send and receive.
#include <fmt/format.h>

#include <algorithm>

#include "c10d/call_checks.h"
#include "c10d/target.h"
#include "c10d/world.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/group_backend.h"

namespace lockstep {
namespace {

using Kind = PointToPoint::Kind;
using Message = GroupBackend::Message;

// A message on its way to a backend.
struct Transfer {
  Kind kind;
  Target target;
  Message message;
  GroupBackend* own;  // null: the backend is another library's
};

// The checks that a message over a backend of another library can have here.
void check_foreign(const Transfer& transfer, const char* operation) {
  const Target& target = transfer.target;
  const Message& message = transfer.message;
  const World::Members members = World::of_process().members(target.group);
  const std::string who = describe_member(members.rank, members.name, members.ranks);
  const CallChecks checks(who, operation, static_cast<int>(members.ranks.size()));
  checks.check_tag(message.tag);
  const BackendCapabilities& can = capabilities_of(*target.backend);
  if (message.peer == kAnySource) {
    if (transfer.kind == Kind::kReceive && can.receives_from_any()) return;
    checks.reject("backend {} receives from a named rank only", target->getBackendName());
  }
  checks.check_peer(message.peer, transfer.kind == Kind::kSend ? "destination" : "source");
  if (!can.takes_strided_messages() && !message.tensor.is_contiguous(message.tensor.suggest_memory_format())) {
    checks.reject("backend {} needs `tensor` contiguous; use .contiguous()", target->getBackendName());
  }
}

Transfer prepare(Kind kind, const at::Tensor& tensor, int peer, const PointToPointOptions& options,
                 const char* operation) {
  check_timeout(options.timeout, operation);
  Transfer transfer{kind, find_target(options.group, tensor, operation), {}, nullptr};
  const bool from_any = kind == Kind::kReceive && peer == kAnySource;
  transfer.message = {tensor, from_any ? kAnySource : transfer.target.group_rank(peer, operation), options.tag,
                      options.timeout};
  transfer.own = dynamic_cast<GroupBackend*>(transfer.target.backend.get());
  if (transfer.own == nullptr) check_foreign(transfer, operation);
  return transfer;
}

// The checks that our own backends would otherwise do when the message starts.
void check(const Transfer& transfer) {
  if (transfer.own == nullptr) return;
  if (transfer.kind == Kind::kSend) {
    transfer.own->check_send(transfer.message);
  } else {
    transfer.own->check_receive(transfer.message);
  }
}

Work start(const Transfer& transfer) {
  const Message& message = transfer.message;
  if (transfer.own != nullptr) {
    return transfer.kind == Kind::kSend ? transfer.own->send_async(message) : transfer.own->receive_async(message);
  }
  c10d::Backend& backend = *transfer.target.backend;
  std::vector<at::Tensor> tensors{message.tensor};
  if (transfer.kind == Kind::kSend) return backend.send(tensors, message.peer, message.tag);
  if (message.peer == kAnySource) return backend.recvAnysource(tensors, message.tag);
  return backend.recv(tensors, message.peer, message.tag);
}

// Whether a backend that coalesces makes one operation of both messages; NCCL does so per group and device.
bool go_together(const Transfer& a, const Transfer& b) {
  return a.target.backend == b.target.backend && a.message.tensor.device() == b.message.tensor.device();
}

// Starts all entries of `list` that go together with list[first]; they share a work.
void start_together(std::span<const Transfer> list, std::size_t first, std::vector<Work>& works) {
  c10d::Backend& backend = *list[first].target.backend;
  backend.startCoalescing();
  try {
    for (const Transfer& transfer : list.subspan(first)) {
      if (go_together(transfer, list[first])) start(transfer);
    }
  } catch (...) {
    backend.endCoalescing();
    throw;
  }
  const Work work = backend.endCoalescing();
  for (std::size_t i = first; i < list.size(); ++i) {
    if (go_together(list[i], list[first])) works[i] = work;
  }
}

}  // namespace

void send(const at::Tensor& tensor, int dst, const PointToPointOptions& options) {
  const Transfer transfer = prepare(Kind::kSend, tensor, dst, options, "send");
  if (transfer.own != nullptr) {
    transfer.own->send_blocking(transfer.message);
  } else {
    start(transfer)->wait(std::max(options.timeout, kNoTimeout));
  }
}

int recv(const at::Tensor& tensor, int src, const PointToPointOptions& options) {
  const Transfer transfer = prepare(Kind::kReceive, tensor, src, options, "recv");
  if (transfer.own != nullptr) {
    return get_global_rank(transfer.target.group, transfer.own->receive_blocking(transfer.message));
  }
  const Work work = start(transfer);
  work->wait(std::max(options.timeout, kNoTimeout));
  return src == kAnySource ? get_global_rank(transfer.target.group, work->sourceRank()) : src;
}

Work isend(const at::Tensor& tensor, int dst, const PointToPointOptions& options) {
  return start(prepare(Kind::kSend, tensor, dst, options, "isend"));
}

Work irecv(const at::Tensor& tensor, int src, const PointToPointOptions& options) {
  return start(prepare(Kind::kReceive, tensor, src, options, "irecv"));
}

std::vector<Work> batch_isend_irecv(std::span<const PointToPoint> list) {
  // All checks come before the first start: a receive that was started and dropped would take the next message.
  std::vector<Transfer> transfers;
  transfers.reserve(list.size());
  for (const PointToPoint& entry : list) {
    transfers.push_back(prepare(entry.kind, entry.tensor, entry.peer, entry.options, "batch_isend_irecv"));
    check(transfers.back());
  }
  std::vector<Work> works(list.size());
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (works[i] != nullptr) continue;
    if (transfers[i].target->supportsCoalescing()) {
      start_together(transfers, i, works);
    } else {
      works[i] = start(transfers[i]);
    }
  }
  return works;
}

}  // namespace lockstep
