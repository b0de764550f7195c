// Trainer: the whole training loop around a model, an optimizer, loaders and a step function of the program's own.
//
//   lockstep::ProcessGroupGuard group;
//   torch::manual_seed(1);                                     // the same weights on all ranks
//   Net net;
//   torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
//   lockstep::Trainer trainer(net, optimizer, {.epochs = 10, .checkpoint_dir = "runs/a", .resume = true});
//   trainer.fit(train_loader, test_loader, [&](lockstep::data::Example& batch) -> lockstep::StepOutput {
//     const torch::Tensor scores = net->forward(batch.data);
//     return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
//   });
//
// It adds nothing of its own to the numbers: a step is zero_grad, forward and backward through
// DistributedDataParallel, clipping, FiniteCheck, fused_step, the average of parameters. The weights are those of a
// loop written by hand, bit for bit. If its options do not suffice, as with several optimizers, write such a loop:
// every part can be used without the Trainer.
//
// Every rank makes the same Trainer with the same options, and makes the same calls. All of them are collective, and
// block. If options differ, the constructor throws on every rank. If numbers of batches or communication hooks differ,
// fit() throws on every rank. Not compared: callbacks, paths, signals, the seed, the number of a
// device, and options that only rank 0 uses. After any other exception the ranks may be at different places: end the
// process (ProcessGroupGuard tells the others). Not thread-safe, but stop() may be called from any thread.
//
// Errors: c10::Error and its kinds for arguments and groups, data::DataError, checkpoint::CheckpointError.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/elastic/elastic_training.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/comm_hook.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/lr_scheduler.h"
#include "lockstep/nn/replica.h"
#include "lockstep/trainer/feed.h"
#include "lockstep/trainer/reports.h"

namespace lockstep {

enum class TrainingPrecision {
  kFloat32,
  kBFloat16,  // Autocast around each step function
  kFloat16,   // Autocast in half precision, with a GradScaler, which skips steps that are not finite
};

// The value that decides which evaluation is the best, for the best checkpoint and for early stopping.
enum class Monitor {
  kLoss,      // lower is better
  kAccuracy,  // the accuracy of the first k of top_k; steps must give scores
};

struct TrainerOptions {
  // The number of epochs of the whole training. A resumed training counts the earlier epochs too.
  std::int64_t epochs = 1;

  // The device of the model and of the tensors of each data::Example. Empty: local_device().
  std::optional<torch::Device> device = {};
  TrainingPrecision precision = TrainingPrecision::kFloat32;
  // Lays out the kernels of convolutions, and the pictures of each data::Example, with the channels last in memory
  // (to_memory_format). Most convolutional models are then faster; on a CPU, models of small pictures gain more after
  // use_fast_convolution(). In the step, call reshape() instead of view() on the result of a convolution.
  bool channels_last = false;

  // On: takes steps by fused_step (lockstep/nn/fused_step.h), as fused=True in Python, if there are kernels for the
  // optimizer and its parameters. Off: takes all steps by the optimizer's own step(). A ZeroRedundancyOptimizer has an
  // option of its own.
  bool fused = true;

  // Null: the learning rate is constant. The scheduler must be made for the same optimizer.
  std::shared_ptr<optim::LRScheduler> scheduler = nullptr;
  enum class Interval { kEpoch, kStep } scheduler_interval = Interval::kEpoch;

  // Batches in a step of the optimizer. The last step of an epoch may have fewer. Losses are divided by the number of
  // batches.
  std::int64_t accumulation = 1;
  // When positive: the largest norm of all gradients of the optimizer's parameters together
  // (clip_grad_norm_).
  double clip_grad_norm = 0.0;
  // When positive: the decay of an ExponentialMovingAverage, which evaluations then use.
  double ema_decay = 0.0;
  // What happens when a loss or a gradient is not finite. With kSkip or clipping, each step reads all gradients, and no
  // step is made with a bad loss or gradient. With kError without clipping, each step looks at the loss, but not at all
  // gradients: a bad gradient under a good loss is an error up to 32 steps later, and no later than the next checkpoint
  // or the end of the epoch (FiniteCheckOptions::checks_per_sweep). On a GPU the loss too is then judged one step
  // later, so one step is made with a bad loss. With kFloat16 a GradScaler skips steps with bad gradients instead;
  // weights and buffers are checked as above. Empty: nothing is checked.
  std::optional<NonFinitePolicy> non_finite = NonFinitePolicy::kError;

  // After every `compare_every` steps, before each checkpoint and at the end of each epoch, the ranks compare their
  // parameters' bits. A difference is an error on every rank that names the first parameter and the ranks that differ
  // (FiniteCheckOptions::compare_every). 0: never. Empty: 100, and never with a comm_hook, because some hooks let the
  // ranks differ on purpose. Needs non_finite; with kFloat16 only before checkpoints and at the ends of epochs.
  std::optional<std::int64_t> compare_every = {};

  DistributedDataParallelOptions ddp = {};
  std::shared_ptr<CommHook> comm_hook = nullptr;  // null: an all-reduce

  // Rank r begins with torch::manual_seed(seed + r), so that dropout differs. A resumed training goes on with the
  // saved generators. Weights belong to the program: seed before it makes the model. The order of samples has the
  // loader's seed.
  std::uint64_t seed = 0;
  // When positive: an epoch and an evaluation end after this number of batches. For trying things out.
  std::int64_t limit_batches = 0;

  // Set: the training outlives ranks that die in fit() (ElasticTraining, docs/failures.md). The world must be made with
  // InitOptions::enable_reconfigure. A step has `accumulation` batches of each rank of the start. After a death the
  // other ranks compute the batches of the dead rank too, or a newcomer takes its place. Each batch has random numbers
  // of its own, from `seed`. If a rank dies in a callback, an evaluation or a save, the callbacks are called again for
  // the last step. Set min_ranks, timeout, newcomers and newcomer_timeout of ElasticOptions only; leave the other
  // fields as they are. kUnsupported with comm_hook, optimizers whose step communicates (but for a
  // ZeroRedundancyOptimizer with copies), synchronised batch normalisation and machine_batch_size. fit() may be called
  // once.
  std::optional<ElasticOptions> elastic = {};
  // On: this process waits in fit() for the place of a dead rank (ElasticTraining::join). While it waits, it writes
  // nothing. If it is not needed, fit() returns kNotNeeded. The process needs a world of its own, and `elastic` with
  // `newcomers`. Without `newcomers`, the Trainer itself sets this option in a process that the launcher has started as
  // a newcomer (`lockstep run --newcomers`).
  bool newcomer = false;

  // Epochs from one evaluation to the next. The last epoch always has an evaluation.
  std::int64_t evaluate_every = 1;
  Monitor monitor = Monitor::kLoss;
  std::vector<std::int64_t> top_k = {1};
  std::int64_t confusion_classes = 0;  // when positive: evaluations make a confusion matrix of this many classes
  // When positive: stops after this many evaluations in a row that are not better. An evaluation is better if it beats
  // the last better one by more than min_delta (as in Keras), so small improvements add up.
  std::int64_t patience = 0;
  double min_delta = 0.0;

  // Empty: no checkpoints. Else the folder of a CheckpointManager, which rank 0 writes and all ranks read. The
  // last state is saved after each epoch, and again with its evaluation; the best state is kept too. Without `resume`,
  // the first save moves the checkpoints of an earlier training into a new subfolder, "earlier-1" and so on. Nothing
  // removes them there.
  std::filesystem::path checkpoint_dir = {};
  int keep_last = 2;
  std::int64_t checkpoint_every_steps = 0;  // when positive: within epochs too
  bool asynchronous_checkpoints = false;
  // Goes on from the newest good checkpoint, with any number of ranks, also in mid-epoch. Without one it starts from
  // the beginning, with a line in the log. If the schedule has another length than the saved schedule (other
  // `epochs`, another number of ranks), the new length and rates count. Another `monitor` begins a new search for the
  // best evaluation.
  bool resume = false;
  // The names of the classes, in the order of their numbers. Checkpoints keep them, and a training with other names is
  // not resumed: kMismatch. Empty here or in the checkpoint: not checked.
  std::vector<std::string> classes = {};

  // When not empty: rank 0 writes the model alone to this file, after each evaluation that is the best so far; without
  // evaluations after each epoch. It is a safetensors file with the names of state_dict(), and the averages of
  // `ema_decay`, if there are any. Its folder must exist. The file's metadata are `model_metadata` (UTF-8), with
  // "lockstep.epochs" (how many are done), "lockstep.step" and the evaluation's "lockstep.loss" and
  // "lockstep.accuracy".
  std::filesystem::path model_file = {};
  std::map<std::string, std::string> model_metadata = {};

  // On: at a SIGINT or SIGTERM that would end the process, all ranks finish the step and save, and fit() returns
  // kInterrupted. A second signal, a second later or more, ends the process.
  bool handle_signals = true;

  TrainerCallbacks callbacks = {};
};

class Trainer {
 public:
  // Moves the model to the device and wraps it (DistributedDataParallel): collective, all ranks have rank 0's values
  // afterwards. There must be a world. `model`: made with TORCH_MODULE, or any model or shared_ptr to
  // one that as_module() takes (lockstep/nn/as_module.h). The optimizer has the model's parameters, and lives longer
  // than the Trainer.
  template <typename Net>
  requires nn_detail::kIsHandle<Net> Trainer(Net model, torch::optim::Optimizer& optimizer, TrainerOptions options = {})
      : Trainer(as_module(model), optimizer, std::move(options)) {}
  Trainer(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer, TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains up to options.epochs. `step(batch)` is called for each batch, with the model in training mode, and returns
  // the loss: a StepOutput or a tensor. All ranks must have the same number of batches in an epoch. Loaders see to
  // this, except loaders with `exact`. `step` is called for evaluation too, with the model in evaluation mode and
  // without gradients. It must call the module itself, not another wrapper. `evaluation` must be another loader.
  template <typename S, typename B, typename Step>
  TrainingResult fit(data::DataLoaderOf<S, B>& train, Step step) {
    trainer_detail::LoaderFeed<S, B, Step> feed(train, step);
    return fit_feeds(feed, nullptr);
  }
  template <typename S, typename B, typename S2, typename B2, typename Step>
  TrainingResult fit(data::DataLoaderOf<S, B>& train, data::DataLoaderOf<S2, B2>& evaluation, Step step) {
    trainer_detail::LoaderFeed<S, B, Step> feed(train, step);
    trainer_detail::LoaderFeed<S2, B2, Step> evaluation_feed(evaluation, step);
    return fit_feeds(feed, &evaluation_feed);
  }

  // Uses the averages of the parameters (ema_decay), if there are any. The result counts neither for the best
  // checkpoint nor for `patience`.
  template <typename S, typename B, typename Step>
  Evaluation evaluate(data::DataLoaderOf<S, B>& loader, Step step) {
    trainer_detail::LoaderFeed<S, B, Step> feed(loader, step);
    return evaluate_feed(feed);
  }

  // Reads the checkpoint with the best evaluation into the model: the averages, if there are any. evaluate() then gives
  // the same evaluation again. False if there is no such checkpoint.
  bool load_best();

  // Does what a signal does. If stop() is called on all ranks during the same step, fit() returns after this step; if
  // it is called on some ranks only, after the next step. Any thread may call it.
  void stop() noexcept;

  std::int64_t epoch() const;  // the present epoch, or the next one
  std::int64_t step() const;   // the number of steps that are done
  torch::Device device() const;

 private:
  TrainingResult fit_feeds(trainer_detail::Feed& train, trainer_detail::Feed* evaluation);
  Evaluation evaluate_feed(trainer_detail::Feed& feed);

  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep
