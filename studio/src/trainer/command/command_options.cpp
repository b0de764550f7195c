#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "lockstep/data/errors.h"
#include "lockstep/transforms/compose.h"
#include "lockstep/transforms/parse.h"
#include "trainer/command/command.h"

namespace lockstep::trainer_detail {
namespace {

namespace fs = std::filesystem;

// Larger numbers are mistakes. Each picture has a label of 8 bytes, and each class a name.
constexpr double kMostFakePictures = 1LL << 31;
constexpr double kMostFakeClasses = 1LL << 24;
constexpr double kLongestSide = 1LL << 16;

// The part of a folder that an evaluation judges.
void declare_share(TrainCommandOptions& o, options::Table& table) {
  table.section("data", "Where the samples are")
      .key("validation_share", o.validation_share,
           "The share of each class of data.train that is for the evaluation, in place of data.test; 0: none")
      .between(0, 1)
      .common();
}

// Keys of a training that count when its model is used, here and in the next functions.
void declare_pictures(TrainCommandOptions& o, options::Table& table) {
  auto data = table.section("data", "Where the samples are");
  data.key("test_transforms", o.test_transforms,
           "Of the evaluation. Empty: those of the training; without these torchvision's of an evaluation");
  data.key("workers", o.workers, "Threads of a machine that make batches; -1: as many as are needed").at_least(-1);
}

// Of an evaluation, whose pictures have classes.
void declare_samples(TrainCommandOptions& o, options::Table& table) {
  auto data = table.section("data", "Where the samples are");
  data.key("format", o.format,
           {{"imagefolder", DataFormat::kImageFolder},
            {"mnist", DataFormat::kMnist},
            {"cifar10", DataFormat::kCifar10},
            {"cifar100", DataFormat::kCifar100},
            {"pack", DataFormat::kPack},
            {"fake", DataFormat::kFake}},
           "A folder with a subfolder of pictures for each class; files of MNIST's or CIFAR's kind; a pack; generated "
           "pictures, for trying out speed")
      .common();
  data.key("on_corrupt", o.on_corrupt,
           {{"raise", CorruptPolicy::kRaise}, {"replace", CorruptPolicy::kReplace}, {"skip", CorruptPolicy::kSkip}},
           "Pictures that cannot be decoded: an error, another picture, or a smaller batch");
  data.key("allow_empty", o.allow_empty, "Of imagefolder: subfolders without a picture are classes, not an error");
  auto trainer = table.section("trainer", "The training loop");
  trainer.key("label_smoothing", o.label_smoothing, "Of the cross entropy").between(0, 1);
  trainer.key("seed", o.seed, "Of weights, dropout, order and transforms").at_least(0).common();
  trainer.key("limit_batches", o.limit_batches, "The most batches of an epoch, for trying things out; 0: all")
      .at_least(0);
}

void declare_structure(TrainCommandOptions& o, options::Table& table) {
  auto model = table.section("model", "What is trained");
  model.key("name", o.model, "The model; custom: that of model.shared_object")
      .choices({"resnet18", "resnet34", "resnet50", "resnet101", "mobilenet_v3_small", "vit_tiny", "vit_b_16",
                "mnist_net", "custom"})
      .common();
  model.key("options", o.model_options, "NAME=VALUE for the model of the library");
  model.key("num_classes", o.num_classes, "0: those of the data").at_least(0);
  model.key("small_images", o.small_images, "ResNet and MobileNet for pictures of about 32 x 32");
  model
      .key("image_size", o.image_size,
           "Side of a vision transformer's pictures, and of those of the default transforms. 0: 224, with small_images "
           "and CIFAR 32, MNIST 28")
      .between(0, kLongestSide);
  model.key("patch_size", o.patch_size, "Side of a vision transformer's patches").at_least(1);
  model.key("sync_batch_norm", o.sync_batch_norm, "Batch statistics over all ranks");
}

void declare_forward_pass(TrainCommandOptions& o, options::Table& table) {
  auto trainer = table.section("trainer", "The training loop");
  trainer
      .key("test_batch_size", o.test_batch_size, "Of the evaluation, of each rank. 0: that of the rank in the training")
      .at_least(0);
  trainer.key("device", o.device, "auto (a GPU, where there is a backend for it), cpu, cuda, cuda:NUMBER").common();
  trainer
      .key("precision", o.precision,
           {{"fp32", TrainCommandPrecision::kFloat32},
            {"bf16", TrainCommandPrecision::kBFloat16},
            {"fp16", TrainCommandPrecision::kFloat16}},
           "Of the forward pass; weights stay fp32")
      .common();
  trainer.key("channels_last", o.channels_last, "The layout of pictures and kernels in memory. Often faster");
}

void declare_data(TrainCommandOptions& o, config::Schema& schema) {
  auto data = schema.section("data", "Where the samples are");
  data.key("train", o.train, "Required. Folder or pack of the training. MNIST and CIFAR have the test in it too")
      .common();
  data.key("test", o.test, "Folder or pack of the evaluation. Empty: none. MNIST and CIFAR have their own").common();
  declare_share(o, schema);
  data.key(
          "transforms", o.transforms,
          "Of the training, as in Python: RandomResizedCrop(224, scale=(0.2, 1.0)). Empty: torchvision's, for pictures "
          "of this kind")
      .common();
  data.key("class_balance", o.class_balance,
           {{"none", ClassBalance::kNone}, {"weights", ClassBalance::kWeights}, {"sampling", ClassBalance::kSampling}},
           "For classes with far more pictures than others: the loss counts each class equally; or each class is drawn "
           "equally often");
  data.key("fake_size", o.fake_size, "Of format fake: the number of pictures").between(1, kMostFakePictures);
  data.key("fake_classes", o.fake_classes, "Of format fake: the number of classes").between(1, kMostFakeClasses);
  declare_samples(o, schema);
  declare_pictures(o, schema);
}

void declare_model(TrainCommandOptions& o, config::Schema& schema) {
  declare_structure(o, schema);
  declare_shared_object(o, schema);
  auto model = schema.section("model", "What is trained");
  model.key("weights", o.weights, "To begin with: of torch.save, safetensors, or a checkpoint of another training")
      .common();
  model.key(
      "weights_key", o.weights_key,
      "The entry of a file of torch.save that is the state dict. Empty: the file itself, or its only usual entry");
  model.key("freeze", o.freeze,
            "Names of modules and parameters that do not train: [conv1, bn1, layer1]. Their batch norms keep their "
            "statistics");
  model
      .key("new_head", o.new_head,
           "The weights are of more or fewer classes: the layer that gives the scores starts from new weights")
      .common();
}

void declare_optimizer(TrainCommandOptions& o, config::Schema& schema) {
  auto optimizer = schema.section("optimizer", "How the weights change");
  optimizer.key("name", o.optimizer, "The optimizer").choices({"sgd", "adam", "adamw", "rmsprop", "adagrad"}).common();
  optimizer.key("lr", o.lr, "Learning rate").at_least(0).common();
  optimizer.key("momentum", o.momentum, "Of sgd and rmsprop. one_cycle moves it (schedule.cycle_momentum)").at_least(0);
  optimizer.key("nesterov", o.nesterov, "Of sgd");
  optimizer.key("weight_decay", o.weight_decay, "L2 penalty; of adamw decoupled").at_least(0).common();
  optimizer.key("betas", o.betas, "Two numbers, of adam and adamw. one_cycle moves the first (schedule.cycle_momentum)")
      .between(0, 1);
  optimizer.key("alpha", o.alpha, "Of rmsprop").between(0, 1);
  optimizer.key("eps", o.eps, "Of all but sgd").at_least(0);
  optimizer.key("fused", o.fused, "Steps in one pass over memory, as Python's fused=True. Not of rmsprop");
  auto schedule = schema.section("schedule", "How the learning rate changes");
  schedule.key("name", o.schedule, "The schedule")
      .choices({"none", "step", "multistep", "exponential", "polynomial", "cosine", "one_cycle"})
      .common();
  schedule.key("interval", o.interval, {{"epoch", Interval::kEpoch}, {"step", Interval::kStep}},
               "What the schedule counts: epochs, or steps of the optimizer. one_cycle counts steps");
  schedule.key("step_size", o.step_size, "Of step: epochs (or steps) between two changes").at_least(1);
  schedule.key("milestones", o.milestones, "Of multistep").at_least(1);
  schedule.key("gamma", o.gamma, "Of step, multistep, exponential: the factor").at_least(0);
  schedule.key("power", o.power, "Of polynomial").at_least(0);
  schedule.key("eta_min", o.eta_min, "Of cosine: the last rate").at_least(0);
  schedule.key("warmup", o.warmup, "Epochs (or steps) in which the rate grows to lr first").at_least(0).common();
  schedule.key("warmup_factor", o.warmup_factor, "The part of lr with which the warm-up begins").between(1e-12, 1);
  schedule.key("cycle_momentum", o.cycle_momentum,
               "Of one_cycle: momentum, or the first of betas, goes from 0.95 to 0.85 and back. false: it stays");
}

void declare_trainer(TrainCommandOptions& o, config::Schema& schema) {
  auto trainer = schema.section("trainer", "The training loop");
  trainer.key("epochs", o.epochs, "Passes over the data").at_least(0).common();
  trainer.key("batch_size", o.batch_size, "Samples in a batch of each rank").at_least(1).common();
  trainer.key("batch_per_machine", o.batch_per_machine, "batch_size is that of a machine, which its ranks share");
  declare_forward_pass(o, schema);
  trainer.key("mixup_alpha", o.mixup_alpha, "Of mixup, in the training; 0: none. With cutmix too: one of both")
      .at_least(0);
  trainer.key("cutmix_alpha", o.cutmix_alpha, "Of cutmix, in the training; 0: none").at_least(0);
  trainer
      .key("top_k", o.top_k,
           "Evaluations tell the share of samples whose class is among the k best too, for these k. 1 is always told")
      .at_least(1);
  trainer.key("accumulation", o.accumulation, "Batches in a step of the optimizer").at_least(1);
  trainer.key("clip_grad_norm", o.clip_grad_norm, "The largest norm of all gradients; 0: no limit").at_least(0);
  trainer.key("ema_decay", o.ema_decay, "Decay of averaged weights, which evaluations then use; 0: none").between(0, 1);
  trainer.key("non_finite", o.non_finite,
              {{"error", NonFinite::kError}, {"skip", NonFinite::kSkip}, {"ignore", NonFinite::kIgnore}},
              "A loss or gradient that is infinite or NaN");
  trainer
      .key("compare_every", o.compare_every,
           "Steps from one comparison of the weights of all processes to the next; 0: never. A difference is an error")
      .at_least(0);
  trainer
      .key("elastic", o.elastic,
           "Go on when a process dies, with a new one in its place or with the others (lockstep run --min-workers, "
           "--newcomers)")
      .common();
  trainer.key("evaluate_every", o.evaluate_every, "Epochs from one evaluation to the next").at_least(1);
  trainer.key("monitor", o.monitor, {{"accuracy", Metric::kAccuracy}, {"loss", Metric::kLoss}},
              "What is better: for the best checkpoint and for patience");
  trainer.key("patience", o.patience, "Stop after so many evaluations that are not better; 0: never").at_least(0);
  trainer.key("min_delta", o.min_delta, "More than this counts as better, from the last evaluation that was")
      .at_least(0);
  trainer
      .key("progress_seconds", o.progress_seconds, "From one line of progress to the next, where there is no terminal")
      .at_least(1);
}

std::string missing(const config::Schema& schema, const char* key, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || fs::exists(path, ignored)) return "";
  return fmt::format("{}: {} is not there ({}; seen from {})\n", key, path, schema.find(key)->origin().place,
                     fs::current_path(ignored).native());
}

bool is_device(const std::string& text) {
  constexpr std::string_view kNumbered = "cuda:";
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  const std::string_view number = std::string_view(text).substr(std::min(text.size(), kNumbered.size()));
  return text.starts_with(kNumbered) && !number.empty() && number.size() <= 3 &&
         std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string wrong_transforms(const char* key, const std::vector<std::string>& texts) {
  const auto transforms = data::parse_transforms(texts);
  if (!transforms.ok()) return fmt::format("{}: {}\n", key, transforms.status().message());
  try {
    data::Compose{transforms.value()};
  } catch (const data::DataError& error) {
    return fmt::format("{}: {}\n", key, error.what());
  }
  return "";
}

// one_cycle sets the momentum in each step, so one that the user has given would silently count for nothing.
std::string lost_momentum(const TrainCommandOptions& o, const config::Schema& schema) {
  const char* key = o.optimizer == "adam" || o.optimizer == "adamw" ? "optimizer.betas" : "optimizer.momentum";
  if (o.schedule != "one_cycle" || o.optimizer == "adagrad") return "";
  if (!schema.find(key)->is_given() || schema.find("schedule.cycle_momentum")->is_given()) return "";
  return fmt::format(
      "{}: schedule.name: one_cycle moves the momentum from 0.95 to 0.85 and back, whatever it is here, as in PyTorch; "
      "set schedule.cycle_momentum to true if that is meant, or to false to keep this one\n",
      key);
}

// Data of the other formats are tensors, to which no transform is applied.
bool has_pictures(DataFormat format) {
  return format != DataFormat::kMnist && format != DataFormat::kFake;
}

// Lines about the keys that say which samples there are.
std::string wrong_data(const TrainCommandOptions& o, const config::Schema& schema) {
  std::string text = missing(schema, "data.train", o.train) + missing(schema, "data.test", o.test);
  const bool is_fake = o.format == DataFormat::kFake;
  if (o.train.empty() && !is_fake) {
    text += "data.train: expected the folder, pack or files of the training; this required key is not given\n";
  }
  if (is_fake && (!o.train.empty() || !o.test.empty())) {
    text += "data.train and data.test are not for format fake, whose pictures are generated\n";
  }
  if (has_pictures(o.format)) {
    text += wrong_transforms("data.transforms", o.transforms);
  } else if (!o.transforms.empty() || !o.test_transforms.empty()) {
    text += fmt::format("data.transforms are not for format {}, whose pictures are normalized tensors\n",
                        is_fake ? "fake" : "mnist");
  }
  const bool has_own_test = o.format != DataFormat::kImageFolder && o.format != DataFormat::kPack && !is_fake;
  if (o.validation_share >= 1) {
    text += fmt::format("data.validation_share: expected a number below 1, found {}\n", o.validation_share);
  }
  if (o.validation_share > 0 && !o.test.empty()) {
    text += "data.validation_share: data.test is given too; expected one of both\n";
  }
  if (o.validation_share > 0 && has_own_test) {
    text += "data.validation_share is not for this data.format, which has a test of its own\n";
  }
  if (o.patience > 0 && o.test.empty() && o.validation_share == 0 && !has_own_test) {
    text += "trainer.patience needs data.test or data.validation_share\n";
  }
  return text;
}

// Lines about keys that an evaluation alone has too.
std::string wrong_keys(const TrainCommandOptions& o) {
  std::string text;
  if (has_pictures(o.format)) text += wrong_transforms("data.test_transforms", o.test_transforms);
  if ((o.model == "custom") == o.shared_object.empty()) {
    text += o.shared_object.empty() ? "model.name: custom needs model.shared_object\n"
                                    : "model.shared_object needs model.name: custom\n";
  }
  if (o.model != "custom" && !o.model_options.empty()) text += "model.options are for model.name: custom\n";
  for (const std::string& option : o.model_options) {
    if (option.find('=') == std::string::npos)
      text += fmt::format("model.options: expected NAME=VALUE, found {}\n", option);
  }
  if (!is_device(o.device)) {
    text += fmt::format("trainer.device: expected auto, cpu, cuda or cuda:NUMBER, found '{}'\n", o.device);
  }
  return text;
}

Status mistakes(std::string lines) {
  if (lines.empty()) return {};
  lines.pop_back();
  return {ErrorCode::kInvalidArgument, std::move(lines)};
}

}  // namespace

void declare_shared_object(TrainCommandOptions& o, options::Table& table) {
  table.section("model", "What is trained")
      .key("shared_object", o.shared_object, "A shared object with a model of your own (LOCKSTEP_MODEL)");
}

void declare_model_file(TrainCommandOptions& o, options::Table& table) {
  declare_samples(o, table);
  declare_share(o, table);
  declare_pictures(o, table);
  declare_structure(o, table);
  declare_forward_pass(o, table);
}

void declare_use_of_model(TrainCommandOptions& o, options::Table& table, bool has_classes) {
  if (has_classes) declare_samples(o, table);
  declare_pictures(o, table);
  declare_shared_object(o, table);
  declare_forward_pass(o, table);
}

Status check_use_of_model(const TrainCommandOptions& o) {
  return mistakes(wrong_keys(o));
}

void declare(TrainCommandOptions& o, config::Schema& schema) {
  schema.ignore_section("launch");
  auto top = schema.section("", "Trains a model on pictures (docs/train.md).");
  top.key("output", o.output, "Folder of the run: its log, report, checkpoints and TensorBoard's files");
  top.key("dry_run", o.dry_run, "Print the plan: shapes, numbers of samples and steps, memory");
  declare_data(o, schema);
  declare_model(o, schema);
  declare_optimizer(o, schema);
  declare_trainer(o, schema);
  auto checkpoint = schema.section("checkpoint", "Checkpoints, in OUTPUT/checkpoints");
  checkpoint.key("save", o.save, "After each epoch: the last ones, and the best one");
  checkpoint.key("resume", o.resume, "Go on from the newest one, with any number of ranks").common();
  checkpoint.key("keep_last", o.keep_last, "How many of the last ones stay").at_least(1);
  checkpoint.key("every_steps", o.every_steps, "Within epochs too; 0: not").at_least(0);
  checkpoint.key("asynchronous", o.asynchronous, "A thread writes, while the training goes on");
}

Status check(const TrainCommandOptions& o, const config::Schema& schema) {
  std::string text = wrong_data(o, schema) + missing(schema, "model.shared_object", o.shared_object) +
                     missing(schema, "model.weights", o.weights);
  if (o.new_head && o.weights.empty()) text += "model.new_head needs model.weights\n";
  if (!o.weights_key.empty() && o.weights.empty()) text += "model.weights_key needs model.weights\n";
  text += wrong_keys(o);
  if (o.betas.size() != 2) text += fmt::format("optimizer.betas: expected two numbers, found {}\n", o.betas.size());
  if (o.schedule == "multistep" && !std::is_sorted(o.milestones.begin(), o.milestones.end())) {
    text += "schedule.milestones: expected ascending numbers\n";
  }
  if (o.schedule == "multistep" && o.milestones.empty()) {
    text += "schedule.name: multistep needs schedule.milestones, without which the rate never changes\n";
  }
  if (o.schedule == "one_cycle" && o.warmup > 0)
    text += "schedule.warmup is not for schedule.name: one_cycle, which begins with a warm-up of its own\n";
  text += lost_momentum(o, schema);
  for (auto k = o.top_k.begin(); k != o.top_k.end(); ++k) {
    if (std::find(o.top_k.begin(), k, *k) != k) text += fmt::format("trainer.top_k: {} is there twice\n", *k);
  }
  if (o.elastic && o.batch_per_machine) {
    text += "trainer.batch_per_machine: expected false with trainer.elastic: the processes of a machine change\n";
  }
  if (o.elastic && o.sync_batch_norm) {
    text +=
        "model.sync_batch_norm: expected false with trainer.elastic: after a death, processes may compute different "
        "numbers of batches, and these layers need all processes in each\n";
  }
  if (o.ema_decay >= 1) text += "trainer.ema_decay: expected a number below 1\n";
  if (o.resume && !o.save) text += "checkpoint.resume needs checkpoint.save\n";
  return mistakes(std::move(text));
}

}  // namespace lockstep::trainer_detail
