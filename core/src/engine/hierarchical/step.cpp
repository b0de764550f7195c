#include "step.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {
namespace {

// Bits of a tag before the key is mixed in: leg, source, step.
constexpr int kStepBits = 41;
constexpr int kSourceBits = 20;

}  // namespace

std::uint64_t StepMessages::tag(int leg, int source) const {
  const std::uint64_t plain = static_cast<std::uint64_t>(leg) << (kStepBits + kSourceBits) |
                              static_cast<std::uint64_t>(source) << kStepBits | step_;
  return plain ^ context_.tag_key;
}

StepMessages::StepMessage& StepMessages::add(int peer, bool is_send, std::size_t bytes) {
  bytes_ += bytes;
  under_way_.push_back({TransportRequest(), peer, is_send, bytes});
  return under_way_.back();
}

void StepMessages::send(int peer, int leg, const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  context_.transport.send(peer, tag(leg, context_.rank), data, bytes, add(peer, true, bytes).request);
}
void StepMessages::receive(int peer, int leg, void* data, std::size_t bytes) {
  if (bytes == 0) return;
  context_.transport.receive(peer, tag(leg, peer), data, bytes, add(peer, false, bytes).request);
}
void StepMessages::signal(int peer, int leg) {
  context_.transport.send(peer, tag(leg, context_.rank), nullptr, 0, add(peer, true, 0).request);
}
void StepMessages::await_signal(int peer, int leg) {
  context_.transport.receive(peer, tag(leg, peer), nullptr, 0, add(peer, false, 0).request);
}

void StepMessages::look() {
  for (const StepMessage& message : under_way_) {
    if (message.request.done && !message.request.status.ok() && status_.ok()) {
      failed_with_ = message.peer;
      status_ = message.request.status.with_context((message.is_send ? "sending to " : "receiving from ") +
                                                    context_.names.ranks.name(message.peer));
    }
  }
  while (!under_way_.empty() && under_way_.front().request.done) under_way_.pop_front();
}

bool StepMessages::done() {
  look();
  return under_way_.empty() && status_.ok();
}

bool StepMessages::received() {
  look();
  return status_.ok() && std::all_of(under_way_.begin(), under_way_.end(), [](const StepMessage& message) {
           return message.is_send || message.request.done;
         });
}

std::pair<std::size_t, std::size_t> StepMessages::progress() const {
  std::size_t open = 0;
  for (const StepMessage& message : under_way_) {
    if (!message.request.done) open += message.bytes;
  }
  return {bytes_ - open, bytes_};
}

void StepMessages::awaited(std::vector<int>& ranks) const {
  for (const StepMessage& message : under_way_) {
    const bool known = std::find(ranks.begin(), ranks.end(), message.peer) != ranks.end();
    if (!message.request.done && !known) ranks.push_back(message.peer);
  }
}

std::vector<std::unique_ptr<Step>> plan_steps(const StepPlan& plan) {
  switch (plan.request.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBroadcast: return plan_reductions(plan);
    case Kind::kAllGather: return plan_all_gather(plan);
    case Kind::kReduceScatter: return plan_reduce_scatter(plan);
    default: return plan_direct(plan);
  }
}

std::byte* MeetingStep::of_machine(int machine) {
  std::size_t before = 0;
  for (int other = 0; other < machine; ++other) before += context_.topology.size(other);
  return gathered_.data() + before * bytes_;
}

Result<Request> MeetingStep::before() {
  if (context_.is_alone()) {
    std::memcpy(of_machine(context_.machine()), mine_, bytes_);
    return Request();
  }
  Gather args;
  args.input = {mine_, bytes_};
  if (context_.index() == 0) {
    for (std::size_t i = 0; i < context_.local_ranks().size(); ++i)
      args.outputs.push_back({of_machine(context_.machine()) + i * bytes_, bytes_});
  }
  return make_request(args, context_.index());
}

bool MeetingStep::exchange() {
  if (context_.index() != 0) return true;
  if (!started_) {
    started_ = true;
    const Topology& topology = context_.topology;
    const int me = context_.machine();
    for (int other = 0; other < topology.machines(); ++other) {
      if (other == me) continue;
      const int peer = topology.rank_at(other, 0);
      messages_.receive(peer, 0, of_machine(other), topology.size(other) * bytes_);
      messages_.send(peer, 0, of_machine(me), topology.size(me) * bytes_);
    }
  }
  return messages_.done();
}

Result<Request> MeetingStep::after() {
  if (context_.is_alone()) return Request();
  return make_request(Broadcast{gathered_.data(), gathered_.size(), 0}, context_.index());
}

void MeetingStep::finish() {
  const std::byte* from = gathered_.data();
  for (int machine = 0; machine < context_.topology.machines(); ++machine) {
    for (const int rank : context_.topology.ranks(machine)) {
      std::memcpy(all_ + rank * bytes_, from, bytes_);
      from += bytes_;
    }
  }
}

}  // namespace lockstep::comm
