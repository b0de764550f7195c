// ElasticTraining: a training loop that outlives its ranks. When a rank dies, the others form the world anew, do the
// failed step again with the same samples, and go on.
//
//   init_process_group("", {.enable_reconfigure = true});
//   std::optional<DistributedDataParallel<Net>> ddp;
//   ElasticTraining training({.rebuild = [&] { ddp.emplace(net); }, .seed = 1});
//   training.add_model(*net);
//   training.add_optimizer(optimizer);
//   training.add_loader(loader);   // a MicroBatchLoader
//   if (!training.join()) return;
//   training.run(1000, {.gradients =
//                           [&](ElasticStep& step) {
//                             step.backward(*ddp, [&](const MicroBatch& micro_batch) {
//                               data::Example& batch = loader.next(micro_batch);
//                               return loss_of((*ddp)->forward(batch.data), batch.target);
//                             });
//                           },
//                       .update = [&](std::int64_t) { optimizer.step(); }});
//
// A step has two halves. `gradients` computes and communicates; it may change gradients, buffers, generators and the
// loaders' cursors, which are put back if a rank dies. `update` changes parameters, optimizers, schedulers and the
// program's own values; it must not communicate. So a rank has either done a step as a whole or can do it again. One
// call in `update` may communicate: step() of a ZeroRedundancyOptimizer with `copies`. It ends in spite of a death.
//
// A step consists of micro-batches. Their number stays the same for the whole training, and the ranks that live share
// them: with 4 micro-batches and 3 ranks, rank 0 computes two. A micro-batch has its samples and, with `seed`, its
// random numbers, whichever rank computes it.
//
// docs/failures.md says what is promised for each moment at which a rank can die. Not thread-safe.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/store/store.h"

namespace lockstep {

class CollectiveStep;

namespace elastic_detail {
class WaitingRoom;
struct Waiting;
struct Invitation;
struct Part;
}  // namespace elastic_detail

struct MicroBatch {
  std::int64_t step = 0;  // the number of its step, from 0
  int number = 0;         // among the micro-batches of the step, which all ranks share: 0 to count - 1
  int count = 1;
};

// One attempt at a step, on this rank.
class ElasticStep {
 public:
  ElasticStep(std::int64_t number, int rank, int world_size, int micro_batches, std::optional<std::uint64_t> seed);

  // The number of the step, from 0.
  std::int64_t number() const { return number_; }
  // How many micro-batches this rank computes in this step: at least one.
  int parts() const { return static_cast<int>(micro_batches_.size()); }
  // Begins part 0, 1, ... of parts(), and says which micro-batch it is. With ElasticOptions::seed seeds the generators
  // of all devices from seed, step and micro-batch.
  MicroBatch begin(int part) const;
  // What to multiply the mean loss of a micro-batch by, so that after DistributedDataParallel's mean over ranks the
  // gradient is the mean over all micro-batches: world size / number of micro-batches.
  double weight() const { return weight_; }

  // Makes the forward and backward passes of this rank's micro-batches. Only the last pass sends gradients.
  // `loss_of(micro_batch)` returns the mean loss of one. Returns the sum of the weighted losses, without graph: its
  // mean over ranks is the loss of the step.
  template <typename Ddp, typename LossOf>
  torch::Tensor backward(Ddp& ddp, LossOf&& loss_of) const {
    torch::Tensor total;
    for (int part = 0; part < parts(); ++part) {
      const auto guard = ddp.no_sync(/*enable=*/part + 1 < parts());
      torch::Tensor loss = loss_of(begin(part));
      if (weight_ != 1) loss = loss * weight_;
      loss.backward();
      total = total.defined() ? total + loss.detach() : loss.detach();
    }
    return total;
  }

 private:
  std::int64_t number_;
  int count_;  // micro-batches of all ranks
  std::optional<std::uint64_t> seed_;
  std::vector<int> micro_batches_;
  double weight_;
};

struct ElasticOptions {
  // Makes what belongs to a world: DistributedDataParallel around the model, groups, hooks. Called on all ranks when
  // run() begins, and again each time that the world was formed anew. It may communicate.
  std::function<void()> rebuild = {};
  // If fewer ranks than this are left, newcomers included, run() ends with kPeerFailed on all of them.
  int min_ranks = 1;
  // The number of micro-batches in a step, at least the number of ranks. 0: the number of ranks when run() first
  // begins. The same on all ranks.
  int micro_batches = 0;
  // With a seed, each micro-batch has random numbers of its own, whichever rank computes it: dropout draws the same
  // after a death. `update` draws the same numbers on all ranks. Without: the ranks' generators go on as they are, the
  // numbers of a dead rank's generator are lost, and `update` must draw none. The same on all ranks.
  std::optional<std::uint64_t> seed = {};
  // How many steps were done before, as when training goes on from a checkpoint. The same on all ranks.
  std::int64_t first_step = 0;
  // How long reconfigure() waits for the living ranks to notice the death. -1: the world's timeout.
  std::chrono::milliseconds timeout{-1};
  // Where processes wait to take the places of dead ranks (join()): a store that all processes reach and that outlives
  // the ranks. Null: the launcher's store, if the launcher replaces workers that have died (`lockstep run --newcomers`,
  // launch/newcomer.h); else nobody takes the places. The same on all ranks. Each training needs a store, or a prefix,
  // of its own: run() refuses the store of a finished training (kInvalidArgument). If the store fails, the training
  // goes on, and nobody can join.
  std::shared_ptr<comm::Store> newcomers = nullptr;
  // How long the living ranks wait for a newcomer after a death, so that no step is made with fewer ranks. If none
  // comes in this time, the ranks go on, and a newcomer joins at the end of a later step. -1: 60 s with the launcher's
  // newcomers, else 0. The ranks do not wait if the launcher starts no newcomer for the dead worker.
  std::chrono::milliseconds newcomer_timeout{-1};
};

struct ElasticFunctions {
  // Computes the gradients of a step. When it is called, no parameter has a gradient.
  std::function<void(ElasticStep& step)> gradients;
  // Changes the parameters by these gradients; must not communicate, but for one step() of a sharded optimizer that was
  // added. With such an optimizer, once a rank has begun `update` of a step, every rank that lives calls `update`
  // exactly once for it.
  std::function<void(std::int64_t step)> update;
  // Called after each step: for evaluation, checkpoints, logs. It may communicate, and must not change what a step
  // depends on. If a rank dies during the call, the function is called again for the same step, on all ranks.
  std::function<void(std::int64_t steps_done)> after_step = {};
};

template <typename T>
concept HasCursor = requires(T& object, const data::SamplerState& state) {
  { object.state() } -> std::convertible_to<data::SamplerState>;
  object.load_state(state);
};

class ElasticTraining {
 public:
  explicit ElasticTraining(ElasticOptions options);
  ~ElasticTraining();
  ElasticTraining(const ElasticTraining&) = delete;
  ElasticTraining& operator=(const ElasticTraining&) = delete;

  // Add the state that a rank needs to take part in the next step: a rank that has done fewer steps gets this state
  // from a rank that has done more. Several objects of each kind may be added, in the same order on all ranks; they
  // must live as long as this object. The functions of Checkpoint with the same names save and restore the objects, and
  // their errors are thrown here. State that differs between ranks (DistributedDataParallelOptions::broadcast_buffers
  // off, error feedback of hooks) is not recovered.
  //
  // One ZeroRedundancyOptimizer may be added, with `copies` of at least 2, on the world and with parameters on the CPU.
  // It stays the same object: the ranks of a new world divide its state anew. All ranks must load the same state. If
  // all ranks with the state of a parameter die at once, run() ends with kPeerFailed on all that are left.
  //
  // kUnsupported: other optimizers whose step() communicates (SharedStep, ZeroRedundancyOptimizer without copies),
  // because a rank that dies in the step leaves the others without a whole state; and models with synchronised batch
  // normalisation, because each layer needs all ranks in each forward pass, and ranks may compute different numbers of
  // micro-batches.
  void add_model(torch::nn::Module& model);
  void add_optimizer(torch::optim::Optimizer& optimizer);
  template <typename T>
  void add_scheduler(T& scheduler) {
    add_compared([&scheduler](checkpoint::Checkpoint& state) { state.add_scheduler(scheduler); },
                 [&scheduler](const checkpoint::Checkpoint& state) { state.restore_scheduler(scheduler); });
  }
  // Where the samples come from: a MicroBatchLoader, or anything else whose cursor depends neither on the rank nor on
  // the world's size.
  template <HasCursor T>
  void add_loader(T& loader) {
    add_cursor({[&loader] { return loader.state(); },
                [&loader](const data::SamplerState& state) { loader.load_state(state); }});
  }
  // Values of the program's own, such as moving averages. `save` is called on one rank alone, `restore` on the ranks
  // that are behind.
  void add_state(std::function<void(checkpoint::Checkpoint& state)> save,
                 std::function<void(const checkpoint::Checkpoint& state)> restore);

  // For a newcomer, which is to take a dead rank's place: waits until a place is free, and makes this process a rank of
  // the others' world. Before join() the newcomer makes a world of its own (lockstep/c10d/reconfigure.h) and adds what
  // the other ranks add; after join() run() takes the state from another rank. Returns false if the training has ended
  // without the newcomer: do not call run() then. Blocks without limit: if all ranks die, nobody tells a newcomer. (The
  // launcher ends its own newcomers then.)
  //
  // Every program may call join(): without ElasticOptions::newcomers it returns true at once, unless the launcher has
  // started this process as a newcomer. In such a newcomer run() without join() throws kInvalidArgument.
  //
  // Throws kInvalidArgument if the newcomer is of another build than the other ranks, or has other options or states
  // (as run() compares them); the others then go on without it. Throws StoreError, NetworkError or BackendError if the
  // store fails.
  bool join();

  // Trains until `steps` steps are done, and returns when all ranks have done them. Collective: all ranks give the same
  // number. First all ranks compare seed, min_ranks, micro_batches, whether newcomers may join, and what was added
  // (names, shapes and dtypes of a model's tensors, kind and numbers of parameters of an optimizer): a c10::ValueError
  // on every rank names a difference. All ranks begin the first run() with the state of rank 0: they compare a hash of
  // models, optimizers, schedulers and loaders, and a rank that differs gets the whole state from rank 0, what
  // add_state() saves included. The hash leaves that out: a rank that differs in nothing else keeps its own. If rank 0
  // dies before another rank has this state, all ranks get kPeerFailed. An error while a rank saves its state for the
  // hash is an error on all ranks.
  //
  // May be called again, also after an error: ranks that have done fewer steps first get the state of another rank. A
  // rank that has died at the end of the last run() is replaced before the first step (newcomer_timeout). Between two
  // calls the program must not communicate if a death there is to be survived: a rank may learn of a death in the last
  // run() when another has ended it. after_step is the place for an evaluation.
  // After run() has returned, a call for no more steps returns at once and does not communicate, so a newcomer's
  // program may repeat the calls that the other ranks made before it came.
  //
  // run() recovers from errors that tell of a death (kPeerFailed, kUnavailable, and kAborted if another rank forms the
  // world anew). It passes on every other exception, on the ranks where it occurs; kTimeout is one of these, and so is
  // kAborted by abort_process_group(). If a group breaks twice in the same step although nobody has died, run() passes
  // on the second error. kPeerFailed: fewer than min_ranks are left. kUnsupported: no living rank has a whole state,
  // because `update` has communicated.
  void run(std::int64_t steps, const ElasticFunctions& functions);

  // Call it in after_step, on all ranks or on none: run() then returns when all ranks have finished this after_step,
  // before all its steps are done. If a rank dies meanwhile and after_step is called again, the new call decides anew.
  void end() { last_ = done_; }

  std::int64_t steps_done() const { return done_; }
  // How often the world was formed anew.
  int recoveries() const { return recoveries_; }
  // The error that told this rank of the last death; empty if nobody has died.
  const std::string& last_death() const { return last_death_; }

 private:
  struct FailedStep;
  struct Cursor {
    std::function<data::SamplerState()> state;
    std::function<void(const data::SamplerState&)> load;
  };
  struct Survey;
  struct Newcomers;
  struct Sharded;

  void find_room();
  void add_collective(CollectiveStep& optimizer);
  void add_cursor(Cursor cursor);
  void add_compared(std::function<void(checkpoint::Checkpoint& state)> save,
                    std::function<void(const checkpoint::Checkpoint& state)> restore);
  void go_on(const ElasticFunctions& functions);
  void begin_world();
  void take_step(const ElasticFunctions& functions);
  void make_update(const ElasticFunctions& functions);
  void make_sharded_update(const ElasticFunctions& functions);
  void make_missed_update(const Survey& all, const ElasticFunctions& functions);
  void exchange(const std::function<void()>& send);
  void take_values(const Survey& all);
  void note_start();
  void clear_gradients();
  void put_back();
  void end_for_newcomers() const;
  void end_alike() const;
  void note_changes();
  void note_death(const std::exception_ptr& why);
  bool recover(const std::exception_ptr& why, const ElasticFunctions& functions);
  std::optional<Survey> form_world(const std::exception_ptr& why, bool& lost);
  void catch_up();
  void ask_store(const std::function<void(elastic_detail::WaitingRoom& room)>& ask);
  std::vector<elastic_detail::Waiting> find_newcomers(std::size_t most, Deadline until);
  bool admit(std::chrono::milliseconds timeout);
  elastic_detail::Invitation invite(const std::vector<elastic_detail::Waiting>& waiting);
  void look_at_store();
  void require_fresh_store(const Survey& all);
  void tell_launcher();
  std::chrono::milliseconds time_for_newcomers() const;
  std::size_t awaited(elastic_detail::WaitingRoom& room) const;
  bool meet(const std::vector<std::string>& handles, std::int64_t uuid) const;
  Survey survey(bool lost);
  void take_sizes(const Survey& all);
  std::string description() const;
  void require_alike(const Survey& all);
  void require_same_start(const Survey& all) const;
  void require_whole(const Survey& all) const;
  void require_enough(const Survey& all);
  std::string lost_state(const Survey& all);
  void require_state(const std::string& lost);
  void refuse_torn_update(const Survey& all);
  void refuse_repetition(const Survey& all, const std::exception_ptr& why);
  void regain_state(const Survey& all);
  void bring_up_to_date(const Survey& all);

  ElasticOptions options_;
  int micro_batches_;  // 0: not known yet
  std::vector<torch::nn::Module*> models_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<elastic_detail::Part> parts_;
  std::vector<Cursor> cursors_;
  std::unique_ptr<FailedStep> snapshot_;
  std::unique_ptr<Newcomers> newcomers_;  // null: without
  std::unique_ptr<Sharded> sharded_;      // the optimizer whose step() communicates; null: there is none
  bool finished_ = false;                 // the last run() has returned: all ranks have done `done_` steps
  bool compared_ = false;                 // the ranks have compared options and added states
  std::int64_t generation_ = 0;           // of the world: the same on all ranks, and never twice
  bool caught_up_ = true;                 // all ranks of the world have done the same steps
  bool has_ended_ = false;                // run() ends with an error that all ranks have, although it tells of deaths
  bool whole_ = true;                     // parameters and added states are those after `done_` steps
  bool started_ = false;                  // has been in a world of this training
  double hash_ = 0;                       // the hash of this rank's state when the first run() began
  std::exception_ptr start_error_;        // why hash_ could not be computed
  double first_hash_ = 0;                 // the hash of rank 0's state at the start; 0: not known
  std::int64_t run_ = 0;                  // counts the calls of run() of all trainings in this process
  int world_size_ = 0;                    // when the world was formed last
  std::int64_t done_;                     // steps that are done
  std::int64_t after_;                    // steps for which after_step has returned
  std::int64_t steps_ = 0;                // the argument of run()
  std::int64_t last_ = 0;                 // the step after which run() ends: steps_, or the step of end()
  int recoveries_ = 0;
  std::string last_death_;       // the error that told of the last death
  std::int64_t broken_at_ = -1;  // the step in which a group broke although nobody had died
};

}  // namespace lockstep
