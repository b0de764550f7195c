// The free functions that send and receive.
#include <fmt/format.h>

#include <algorithm>

#include "c10d/backend/backend_call.h"
#include "c10d/backend/call_checks.h"
#include "c10d/world/target.h"
#include "c10d/world/world_state.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/group_backend.h"

namespace lockstep {
namespace {

using Kind = PointToPoint::Kind;
using Message = GroupBackend::Message;

// A message that has its backend and has not been started.
struct PreparedMessage {
  Kind kind;
  Target target;
  Message message;
  GroupBackend* own;  // null: the backend is another library's
};

// The checks that a message over a backend of another library can have here.
void check_foreign(const PreparedMessage& prepared, const char* operation) {
  const Target& target = prepared.target;
  const Message& message = prepared.message;
  const WorldState::Members members = WorldState::of_process().members(target.group);
  const std::string who = describe_member(members.rank, members.name, members.ranks);
  const CallChecks checks(who, operation, static_cast<int>(members.ranks.size()));
  checks.check_tag(message.tag);
  const BackendCapabilities& can = capabilities_of(*target.backend);
  if (message.peer == kAnySource) {
    if (prepared.kind == Kind::kReceive && can.receives_from_any()) return;
    checks.reject("backend {} receives from a named rank only", target->getBackendName());
  }
  checks.check_peer(message.peer, prepared.kind == Kind::kSend ? "destination" : "source");
  if (!can.takes_strided_messages() && !message.tensor.is_contiguous(message.tensor.suggest_memory_format())) {
    checks.reject("backend {} needs `tensor` contiguous; use .contiguous()", target->getBackendName());
  }
}

PreparedMessage prepare(Kind kind, const at::Tensor& tensor, int peer, const PointToPointOptions& options,
                        const char* operation) {
  check_timeout(options.timeout, operation);
  PreparedMessage prepared{kind, find_target(options.group, tensor, operation), {}, nullptr};
  const bool from_any = kind == Kind::kReceive && peer == kAnySource;
  prepared.message = {tensor, from_any ? kAnySource : prepared.target.group_rank(peer, operation), options.tag,
                      options.timeout};
  prepared.own = dynamic_cast<GroupBackend*>(prepared.target.backend.get());
  if (prepared.own == nullptr) check_foreign(prepared, operation);
  return prepared;
}

// The checks that our own backends would otherwise do when the message starts.
void check(const PreparedMessage& prepared) {
  if (prepared.own == nullptr) return;
  if (prepared.kind == Kind::kSend) {
    prepared.own->check_send(prepared.message);
  } else {
    prepared.own->check_receive(prepared.message);
  }
}

// The call of a message, blocking or not.
template <typename Run>
Work through_seam(const PreparedMessage& prepared, bool async, const Run& run) {
  const Message& message = prepared.message;
  const bool from_any = message.peer == kAnySource;
  const flight::Op receive = from_any ? flight::Op::kReceiveFromAny : flight::Op::kReceive;
  const BackendCall call(prepared.target.group.get(), *prepared.target.backend,
                         prepared.kind == Kind::kSend ? flight::Op::kSend : receive, async, message.peer, message.tag);
  return call.call(run, message.tensor);
}

Work start_now(const PreparedMessage& prepared) {
  const Message& message = prepared.message;
  if (prepared.own != nullptr) {
    return prepared.kind == Kind::kSend ? prepared.own->send_async(message) : prepared.own->receive_async(message);
  }
  c10d::Backend& backend = *prepared.target.backend;
  std::vector<at::Tensor> tensors{message.tensor};
  if (prepared.kind == Kind::kSend) return backend.send(tensors, message.peer, message.tag);
  if (message.peer == kAnySource) return backend.recvAnysource(tensors, message.tag);
  return backend.recv(tensors, message.peer, message.tag);
}

Work start(const PreparedMessage& prepared) {
  return through_seam(prepared, /*async=*/true, [&] { return start_now(prepared); });
}

// Whether a backend that coalesces makes one operation of both messages; NCCL does so per group and device.
bool go_together(const PreparedMessage& a, const PreparedMessage& b) {
  return a.target.backend == b.target.backend && a.message.tensor.device() == b.message.tensor.device();
}

// Starts all entries of `list` that go together with list[first]; they share a work.
void start_together(std::span<const PreparedMessage> list, std::size_t first, std::vector<Work>& works) {
  c10d::Backend& backend = *list[first].target.backend;
  backend.startCoalescing();
  try {
    for (const PreparedMessage& prepared : list.subspan(first)) {
      if (go_together(prepared, list[first])) start(prepared);
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

void send(const at::Tensor& tensor, int dst, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  const PreparedMessage prepared = prepare(Kind::kSend, tensor, dst, options, "send");
  if (prepared.own != nullptr) {
    through_seam(prepared, /*async=*/false, [&] {
      prepared.own->send_blocking(prepared.message);
      return Work();
    });
  } else {
    start(prepared)->wait(std::max(options.timeout, kNoTimeout));
  }
}

int recv(const at::Tensor& tensor, int src, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  const PreparedMessage prepared = prepare(Kind::kReceive, tensor, src, options, "recv");
  if (prepared.own != nullptr) {
    int from = src;
    through_seam(prepared, /*async=*/false, [&] {
      from = prepared.own->receive_blocking(prepared.message);
      return Work();
    });
    return get_global_rank(prepared.target.group, from);
  }
  const Work work = start(prepared);
  work->wait(std::max(options.timeout, kNoTimeout));
  return src == kAnySource ? get_global_rank(prepared.target.group, work->sourceRank()) : src;
}

Work isend(const at::Tensor& tensor, int dst, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  return start(prepare(Kind::kSend, tensor, dst, options, "isend"));
}

Work irecv(const at::Tensor& tensor, int src, const PointToPointOptions& options, CallSite site) {
  const CallScope scope(site);
  return start(prepare(Kind::kReceive, tensor, src, options, "irecv"));
}

std::vector<Work> batch_isend_irecv(std::span<const PointToPoint> list, CallSite site) {
  const CallScope scope(site);
  // All checks come before the first start: a receive that was started and dropped would take the next message.
  std::vector<PreparedMessage> messages;
  messages.reserve(list.size());
  for (const PointToPoint& entry : list) {
    messages.push_back(prepare(entry.kind, entry.tensor, entry.peer, entry.options, "batch_isend_irecv"));
    check(messages.back());
  }
  std::vector<Work> works(list.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (works[i] != nullptr) continue;
    if (messages[i].target->supportsCoalescing()) {
      start_together(messages, i, works);
    } else {
      works[i] = start(messages[i]);
    }
  }
  return works;
}

}  // namespace lockstep
