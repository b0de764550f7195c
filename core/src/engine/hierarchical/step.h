// Step: the unit of work of a group that spans machines. It is a local operation among the ranks of this machine, an
// exchange with other machines, and another local operation. Every rank runs the same steps in the same order. So the
// local operations of a machine's ranks match, and so do the tagged messages, whose tags hold the step's number.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "call.h"
#include "engine/core/request.h"
#include "group_context.h"
#include "net/transport.h"

namespace lockstep::comm {

// The tagged messages of one step. Empty messages are not sent: both sides know the size. `leg` tells apart what one
// rank sends to another in a step.
class StepMessages {
 public:
  explicit StepMessages(const GroupContext& context) : context_(context) {}

  void set_number(std::uint64_t step) { step_ = step; }
  void send(int peer, int leg, const void* data, std::size_t bytes);
  void receive(int peer, int leg, void* data, std::size_t bytes);
  // A message without data, which only says that this rank has come so far.
  void signal(int peer, int leg);
  void await_signal(int peer, int leg);

  bool done();
  bool received();
  // How many bytes have been sent and received, and of how many.
  std::pair<std::size_t, std::size_t> progress() const;
  // Why a message failed, and the rank at its other end (-1: none failed).
  const Status& status() const { return status_; }
  int failed_with() const { return failed_with_; }
  // Adds the ranks with which messages are still under way.
  void awaited(std::vector<int>& ranks) const;

 private:
  struct StepMessage {
    TransportRequest request;
    int peer;
    bool is_send;
    std::size_t bytes;
  };
  StepMessage& add(int peer, bool is_send, std::size_t bytes);
  std::uint64_t tag(int leg, int source) const;
  void look();

  const GroupContext& context_;
  std::uint64_t step_ = 0;
  std::deque<StepMessage> under_way_;
  std::size_t bytes_ = 0;  // of all messages so far
  Status status_;
  int failed_with_ = -1;
};

class Step {
 public:
  virtual ~Step() = default;

  // At most how many bytes this rank exchanges with another machine; 0: few.
  virtual std::size_t bytes() const { return 0; }
  // The local operation before the exchange. Kind kNone: there is none.
  virtual Result<Request> before() { return Request(); }
  // Called when that operation has begun. Posts receives for which there is a place already: a message that comes
  // before its receive is copied once more.
  virtual void expect() {}
  // Called repeatedly once the local operation is over. True when everything has been exchanged.
  virtual bool exchange() { return true; }
  // The local operation that ends the step. It keeps the machine's ranks together, so every step has one, unless the
  // rank is alone there.
  virtual Result<Request> after() { return make_request(Barrier{}); }
  // Called when that operation is over.
  virtual void finish() {}

  StepMessages& messages() { return messages_; }

 protected:
  explicit Step(const GroupContext& context) : context_(context), messages_(context) {}
  const GroupContext& context_;
  StepMessages messages_;
};

// Every rank gives a block of `bytes`, which is at `mine`; every rank gets all blocks at `all`, by rank.
class MeetingStep final : public Step {
 public:
  MeetingStep(const GroupContext& context, const std::byte* mine, std::byte* all, std::size_t bytes)
      : Step(context), mine_(mine), all_(all), bytes_(bytes), gathered_(bytes * context.size()) {}
  Result<Request> before() override;
  bool exchange() override;
  Result<Request> after() override;
  void finish() override;

 private:
  std::byte* of_machine(int machine);

  const std::byte* mine_;
  std::byte* all_;
  std::size_t bytes_;
  std::vector<std::byte> gathered_;  // machine after machine
  bool started_ = false;
};

// The steps of an operation after its meeting: plan_steps() chooses between the functions below it. `table`: sizes by
// pair of ranks, if they differ between ranks.
struct StepPlan {
  const GroupContext& context;
  const Request& request;
  std::span<const SizeEntry> table;
};
std::vector<std::unique_ptr<Step>> plan_steps(const StepPlan& plan);
std::vector<std::unique_ptr<Step>> plan_reductions(const StepPlan& plan);  // all_reduce, reduce, broadcast
std::vector<std::unique_ptr<Step>> plan_all_gather(const StepPlan& plan);
std::vector<std::unique_ptr<Step>> plan_reduce_scatter(const StepPlan& plan);
std::vector<std::unique_ptr<Step>> plan_direct(const StepPlan& plan);  // gather, scatter, all_to_all

}  // namespace lockstep::comm
