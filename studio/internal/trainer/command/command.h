// What `lockstep train` does, and what config.yaml says about the training. No torch header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/schema.h"

namespace lockstep::trainer_detail {

enum class DataFormat { kImageFolder, kMnist, kCifar10, kCifar100, kPack, kFake };
enum class ClassBalance { kNone, kWeights, kSampling };
enum class CorruptPolicy { kRaise, kReplace, kSkip };
enum class TrainCommandPrecision { kFloat32, kBFloat16, kFloat16 };
enum class NonFinite { kError, kSkip, kIgnore };
enum class Metric { kAccuracy, kLoss };
enum class Interval { kEpoch, kStep };

// In the folder of the run.
inline constexpr const char* kSummaryName = "tensorboard";
inline constexpr const char* kCheckpointsName = "checkpoints";
inline constexpr const char* kModelName = "model.safetensors";
inline constexpr const char* kEarlierModelName = "earlier-model.safetensors";  // of a training before

struct TrainCommandOptions {
  bool dry_run = false;
  std::string output = "runs/train";

  DataFormat format = DataFormat::kImageFolder;
  std::string train;
  std::string test;
  std::vector<std::string> transforms;  // empty: those of complete()
  std::vector<std::string> test_transforms;
  double validation_share = 0.0;  // of data.train, for the evaluation; 0: data.test
  ClassBalance class_balance = ClassBalance::kNone;
  std::int64_t fake_size = 1000;
  std::int64_t fake_classes = 10;
  CorruptPolicy on_corrupt = CorruptPolicy::kRaise;
  bool allow_empty = false;
  int workers = -1;  // of a machine; -1: as many as are needed

  std::string model = "resnet18";
  std::string shared_object;
  std::vector<std::string> model_options;  // NAME=VALUE
  std::string weights;
  std::string weights_key;
  std::vector<std::string> freeze;  // names of modules and parameters
  bool new_head = false;
  std::int64_t num_classes = 0;  // 0: those of the data
  bool small_images = false;
  std::int64_t image_size = 0;  // 0: that of complete()
  std::int64_t patch_size = 16;
  bool sync_batch_norm = false;

  std::string optimizer = "sgd";
  double lr = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  double alpha = 0.99;
  double eps = 1e-8;
  bool fused = true;

  std::string schedule = "none";
  Interval interval = Interval::kEpoch;
  std::int64_t step_size = 30;
  std::vector<std::int64_t> milestones;
  double gamma = 0.1;
  double power = 1.0;
  double eta_min = 0.0;
  std::int64_t warmup = 0;
  double warmup_factor = 0.01;
  bool cycle_momentum = true;

  std::int64_t epochs = 10;
  std::int64_t batch_size = 32;
  bool batch_per_machine = false;
  std::int64_t test_batch_size = 0;  // 0: that of this rank in the training
  std::string device = "auto";
  TrainCommandPrecision precision = TrainCommandPrecision::kFloat32;
  bool channels_last = false;
  std::int64_t accumulation = 1;
  double clip_grad_norm = 0.0;
  double ema_decay = 0.0;
  double label_smoothing = 0.0;
  double mixup_alpha = 0.0;
  double cutmix_alpha = 0.0;
  std::vector<std::int64_t> top_k;
  NonFinite non_finite = NonFinite::kError;
  std::int64_t seed = 0;
  std::int64_t limit_batches = 0;
  bool elastic = false;
  std::int64_t compare_every = 100;
  std::int64_t evaluate_every = 1;
  Metric monitor = Metric::kAccuracy;
  std::int64_t patience = 0;
  double min_delta = 0.0;

  bool save = true;
  bool resume = false;
  int keep_last = 2;
  std::int64_t every_steps = 0;
  bool asynchronous = false;

  std::int64_t progress_seconds = 30;
};

// Binds all keys to `options`, which must outlive the schema.
void declare(TrainCommandOptions& options, config::Schema& schema);

// Fills the values whose default depends on other keys: model.image_size, and the transforms that torchvision's
// training reference has for pictures of this kind. Later calls change nothing.
void complete(TrainCommandOptions& options);

// What one key alone cannot tell: paths that are not there, options that exclude each other. All mistakes, one a line.
// The schema has read the options, and knows where each of them came from.
Status check(const TrainCommandOptions& options, const config::Schema& schema);

// The side of the pictures for which the model is made.
std::int64_t picture_side(const TrainCommandOptions& options);

// Of these keys, those that the file of a trained model holds: the model, and what an evaluation depends on. Without
// model.shared_object: a file from somebody else must not say which code is loaded.
void declare_model_file(TrainCommandOptions& options, options::Table& table);
// The code of a model of the user's own.
void declare_shared_object(TrainCommandOptions& options, options::Table& table);
// Those that may be other ones when the model is used. `has_classes`: for an evaluation.
void declare_use_of_model(TrainCommandOptions& options, options::Table& table, bool has_classes);
// check() for the keys of declare_model_file().
Status check_use_of_model(const TrainCommandOptions& options);

// Joins the world and trains, or prints the plan. `options` are complete(). Returns the exit code: 0, or 128 + the
// signal that ended the training. Throws.
int run_train_command(const TrainCommandOptions& options);

}  // namespace lockstep::trainer_detail
