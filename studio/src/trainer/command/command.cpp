#include "trainer/command/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>

#include "base/arithmetic.h"
#include "c10d/backend/group_errors.h"
#include "lockstep/base/environment.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/launch/newcomer.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "lockstep/nn/fast_convolution.h"
#include "lockstep/trainer/trainer.h"
#include "trainer/command/command_parts.h"
#include "trainer/command/command_report.h"
#include "trainer/command/model_file.h"
#include "trainer/command/use_of_model.h"

namespace lockstep::trainer_detail {
namespace {

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// Whether the launcher has started this process in the place of a dead worker. Throws where the others of the job could
// not take it in.
bool is_newcomer_of_launcher(const TrainCommandOptions& options) {
  const auto rank = launch::replaced_rank();
  if (!rank.ok()) throw std::runtime_error(rank.status().message());
  const auto most = Environment::of_process().get("LOCKSTEP_MAX_NEWCOMERS");
  if (!options.elastic && most && *most != "0") {
    throw std::runtime_error(
        "trainer.elastic: expected true under lockstep run --newcomers, found false: a new process could not join the "
        "training; give --elastic, or leave out --newcomers");
  }
  return rank.value().has_value();
}

// Everything that the command needs for the training.
struct TrainCommand {
  TrainCommand(const TrainCommandOptions& the_options, const CudaSupport& cuda)
      : options(the_options),
        is_newcomer(is_newcomer_of_launcher(options)),
        device(device_of(options, cuda)),
        pictures(open_data(options)),
        train(pictures.train, train_loader_options(options, pictures, device)),
        sample(first_sample("data.train", *pictures.train)) {
    if (pictures.test) test.emplace(pictures.test, test_loader_options(options, device, test_batch_size()));
    torch::manual_seed(static_cast<std::uint64_t>(options.seed));
    model = make_model(options, pictures, sample);
    test_sample = pictures.test ? first_sample("data.test", *pictures.test) : sample;
    if (pictures.test) try_test_sample(model, options, test_sample);
    check_top_k();
    if (!options.freeze.empty()) model.frozen = freeze(*model.model, options.freeze);
    try_batch_of_one();
    model.model->to(device);
    model.class_weights = class_weights(options, pictures, model.num_classes);
    if (model.class_weights.defined()) model.class_weights = model.class_weights.to(device);
    optimizer = make_optimizer(options, trained_parameters());
    schedule = make_schedule(options, *optimizer, steps());
  }

  std::int64_t batches_of(const data::DataLoader& loader) const {
    return options.limit_batches > 0 ? std::min(loader.size(), options.limit_batches) : loader.size();
  }
  std::int64_t steps() const { return ceil_divide(batches_of(train), options.accumulation); }
  // How many batches of the evaluation this rank has. A world that was formed anew has other shares.
  std::int64_t test_batches() const {
    const std::int64_t share = ceil_divide(pictures.test->size(), std::int64_t{get_world_size()});
    const std::int64_t batches = options.elastic ? ceil_divide(share, test->batch_size()) : test->size();
    return options.limit_batches > 0 ? std::min(batches, options.limit_batches) : batches;
  }
  // Of this rank: without a number of its own the training's, which is this rank's share of a machine's.
  std::int64_t test_batch_size() const {
    return options.test_batch_size > 0 ? options.test_batch_size : train.batch_size();
  }
  StepOutput run(const data::Example& batch) {
    if (options.elastic) return run_elastic(batch);
    // After the last batch `batches_left` is that of a whole pass, so this number is 0.
    const std::int64_t position = train.size() - train.batches_left();
    const std::int64_t number = position * get_world_size() + get_rank();
    try {
      return forward(model, options, mixed(batch, options, model.num_classes, train.epoch(), number));
    } catch (const c10::Error& error) {
      if (batch.data.size(0) != 1) throw;
      const std::int64_t taken = position == 0 ? train.size() : position;
      throw no_batch_of_one(options, fmt::format("epoch {}, batch {}", train.epoch() + 1, taken), plain_text(error));
    }
  }
  // The loader's cursor does not move, because any rank may compute any micro-batch. Each micro-batch has random
  // numbers of its own.
  StepOutput run_elastic(const data::Example& batch) {
    const bool mixes = options.mixup_alpha > 0 || options.cutmix_alpha > 0;
    const std::int64_t number =
        mixes ? torch::randint(std::numeric_limits<std::int64_t>::max(), {1}, torch::kLong).item<std::int64_t>() : 0;
    try {
      return forward(model, options, mixed(batch, options, model.num_classes, /*epoch=*/0, number));
    } catch (const c10::Error& error) {
      if (batch.data.size(0) != 1) throw;
      throw no_batch_of_one(options, "a batch whose other pictures are corrupt", plain_text(error));
    }
  }
  // With shares and batches that differ between the ranks of a machine, the training itself finds such a batch. So it
  // does where corrupt pictures are left out. Synchronized batch norms have the values of all ranks.
  void try_batch_of_one() {
    if (is_newcomer) return;  // the ranks of the start have tried theirs
    if (get_world_size() > 1 && (options.batch_per_machine || options.sync_batch_norm)) return;
    const std::int64_t samples = ceil_divide(pictures.train->size(), std::int64_t{get_world_size()});
    const std::int64_t batches = batches_of(train);
    const std::int64_t last = std::min(train.batch_size(), samples - (batches - 1) * train.batch_size());
    if (batches == 0 || last != 1) return;
    const std::string reason = why_not_alone(model, options, sample);
    if (!reason.empty())
      throw no_batch_of_one(options, fmt::format("epoch 1, batch {}", train.batch_size() == 1 ? 1 : batches), reason);
  }
  std::vector<torch::Tensor> trained_parameters() const {
    std::vector<torch::Tensor> parameters = distinct_parameters(*model.model);
    std::erase_if(parameters, [](const torch::Tensor& parameter) { return !parameter.requires_grad(); });
    return parameters;
  }
  void check_top_k() const {
    for (const std::int64_t k : options.top_k) {
      if (k <= model.num_classes) continue;
      throw std::runtime_error(
          fmt::format("trainer.top_k: expected at most the model's {} classes, found {}", model.num_classes, k));
    }
  }

  const TrainCommandOptions& options;
  bool is_newcomer;  // which has a world of its own until it takes the place of a dead rank
  torch::Device device;
  TrainCommandData pictures;
  data::DataLoader train;
  torch::Tensor sample;
  torch::Tensor test_sample;  // without an evaluation that of the training
  std::optional<data::DataLoader> test;
  TrainCommandModel model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<optim::LRScheduler> schedule;
};

std::int64_t numbers_of(const std::vector<torch::Tensor>& tensors) {
  std::int64_t numbers = 0;
  for (const torch::Tensor& tensor : tensors) numbers += tensor.numel();
  return numbers;
}

void print_transforms(const char* title, const std::vector<std::string>& texts) {
  if (!texts.empty()) std::printf("%-11s %s\n", title, fmt::format("{}", fmt::join(texts, ", ")).c_str());
}

void print_plan(const TrainCommand& command) {
  const auto parameters = distinct_parameters(*command.model.model);
  const auto trained = command.trained_parameters();
  const std::int64_t numbers = numbers_of(parameters);
  const std::int64_t frozen = numbers - numbers_of(trained);
  const std::int64_t bytes = bytes_of(parameters) * (command.options.ema_decay > 0 ? 2 : 1) +
                             bytes_of(trained) * (1 + state_factor(command.options));
  const std::int64_t batch = command.train.batch_size() * static_cast<std::int64_t>(command.sample.nbytes());
  std::printf("model       %s: %lld parameters, %s%lld classes\n", command.options.model.c_str(),
              static_cast<long long>(numbers), frozen > 0 ? fmt::format("{} of them frozen, ", frozen).c_str() : "",
              static_cast<long long>(command.model.num_classes));
  std::printf("training    %lld samples of %s, %zu classes\n", static_cast<long long>(command.pictures.train->size()),
              c10::str(command.sample.sizes()).c_str(), command.pictures.classes.size());
  if (command.test) {
    std::printf("evaluation  %lld samples, batches of %lld\n", static_cast<long long>(command.pictures.test->size()),
                static_cast<long long>(command.test->batch_size()));
  }
  print_transforms("transforms", command.options.transforms);
  if (command.test) {
    print_transforms("in the test", command.options.test_transforms.empty() ? command.options.transforms
                                                                            : command.options.test_transforms);
  }
  std::printf("ranks       %d on %s, batches of %lld\n", get_world_size(), command.device.str().c_str(),
              static_cast<long long>(command.train.batch_size()));
  const auto epochs = static_cast<long long>(command.options.epochs);
  std::printf("steps       %lld in an epoch, %lld in %lld epoch%s\n", static_cast<long long>(command.steps()),
              static_cast<long long>(command.steps()) * epochs, epochs, epochs == 1 ? "" : "s");
  std::printf("memory      %s a rank for weights, gradients and optimizer; %s a batch; activations come on top\n",
              mebibytes(bytes).c_str(), mebibytes(batch).c_str());
  std::fflush(stdout);
}

int train(TrainCommand& command, TrainerOptions settings, const std::filesystem::path& output) {
  TrainCommandReport report(command.options, output, command.pictures.classes, command.is_newcomer,
                            command.test.has_value());
  settings.callbacks = report.callbacks();
  std::optional<Trainer> trainer;
  const auto step = [&](data::Example& batch) {
    if (command.model.model->is_training()) return command.run(batch);
    report.begin_test_batch(trainer->epoch() - 1, command.test_batches());
    StepOutput output = forward(command.model, command.options, batch);
    report.end_test_batch(batch.data.size(0));
    return output;
  };
  TrainingResult result;
  try {
    trainer.emplace(command.model.model, *command.optimizer, std::move(settings));
    result = command.test ? trainer->fit(command.train, *command.test, step) : trainer->fit(command.train, step);
  } catch (const std::exception& error) {
    // Of this rank alone: the others may not be there any more.
    report.fail(plain_text(error), trainer ? trainer->epoch() : 0, trainer ? trainer->step() : 0,
                corrupt_files_of_rank(command.pictures));
    throw;
  }
  report.end(result, corrupt_files(command.pictures));
  return result.end == TrainingEnd::kInterrupted && result.signal != 0 ? 128 + result.signal : 0;
}

int run(const TrainCommandOptions& options) {
  const CudaSupport cuda = find_cuda(options);
  const ProcessGroupGuard group("", {.enable_reconfigure = options.elastic});
  TrainCommand command(options, cuda);
  for (const std::string& note :
       {command.model.weights_note, freeze_note(options), imbalance_note(options, command.pictures)}) {
    if (note.empty() || command.is_newcomer || get_rank() != 0) continue;
    std::printf("%s\n", note.c_str());
    std::fflush(stdout);
  }
  const std::filesystem::path output = TrainCommandReport::folder(options);
  if (options.dry_run) {
    if (get_rank() != 0) return 0;
    check_output(options, output);
    try_samples("data.train", *command.pictures.train);
    if (command.pictures.test) try_samples("data.test", *command.pictures.test);
    print_plan(command);
    return 0;
  }
  TrainerOptions trainer_settings = trainer_options(options, command.device, output);
  trainer_settings.scheduler = command.schedule;
  trainer_settings.classes = command.pictures.classes;
  if (options.save) {
    trainer_settings.model_file = output / kModelName;
    trainer_settings.model_metadata = model_metadata(options, command.pictures.classes, command.sample.sizes(),
                                                     command.test_sample.sizes(), command.test_batch_size());
    if (options.validation_share > 0) {
      trainer_settings.model_metadata[kModelParts] = text_of_parts(command.pictures);
    }
  }
  if (command.model.num_classes <= kMostConfusionClasses)
    trainer_settings.confusion_classes = command.model.num_classes;
  use_fast_batch_norm();
  use_fast_convolution();
  return train(command, std::move(trainer_settings), output);
}

}  // namespace

int run_train_command(const TrainCommandOptions& options) {
  return with_plain_errors([&] { return run(options); });
}

}  // namespace lockstep::trainer_detail
