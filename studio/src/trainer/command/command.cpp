#include "trainer/command/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "base/arithmetic.h"
#include "base/printable.h"
#include "c10d/backend/group_errors.h"
#include "c10d/cuda_library.h"
#include "lockstep/base/log.h"
#include "lockstep/base/status.h"
#include "lockstep/c10d/cuda.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "lockstep/nn/fast_convolution.h"
#include "lockstep/report/run_log.h"
#include "lockstep/trainer/trainer.h"
#include "report/append_file.h"
#include "trainer/command/command_parts.h"
#include "trainer/command/command_report.h"
#include "trainer/command/worst_samples.h"

namespace lockstep::trainer_detail {
namespace {

// Before the process group is made: its default backends depend on whether there is CUDA. A training on the CPU does
// not pay for CUDA; nor does `auto` in a build without NCCL, where it means the CPU.
CudaSupport find_cuda(const TrainCommandOptions& options) {
  if (options.device == "cpu") return {};
  if (options.device != "auto" || is_available("nccl")) return load_cuda();
  if (why_no_gpu(CudaSurroundings::of_process()).empty()) {
    log::warning(
        "trainer.device: auto: a GPU is there, but this build of Lockstep has no backend nccl; training on the CPU. "
        "Build Lockstep with LibTorch's CUDA wheel");
  }
  return {};
}

torch::Device device_of(const TrainCommandOptions& options, const CudaSupport& cuda) {
  if (options.device == "auto") return local_device();
  const torch::Device asked(options.device);
  TORCH_CHECK_VALUE(!asked.is_cuda() || torch::cuda::is_available(), "trainer.device: ", options.device,
                    ", but this process sees no GPU: ",
                    cuda.loaded ? "CUDA finds none that it can use. Check with nvidia-smi that the driver works and is "
                                  "new enough, and that CUDA_VISIBLE_DEVICES names GPUs that are there"
                                : cuda.reason);
  return asked.is_cuda() && !asked.has_index()
             ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(get_local_rank() %
                                                                         static_cast<int>(torch::cuda::device_count())))
             : asked;
}

// Of both loaders.
data::DataLoaderOptions loader_options(const TrainCommandOptions& options, torch::Device device) {
  data::DataLoaderOptions loader;
  loader.seed = static_cast<std::uint64_t>(options.seed);
  // MNIST is in memory: its batches take less time than handing them over.
  if (options.format != DataFormat::kMnist) {
    if (options.workers < 0) {
      loader.num_workers = data::kAutoWorkers;
    } else {
      loader.machine_workers = options.workers;
    }
  }
  if (!device.is_cpu()) loader.device = device;
  return loader;
}

data::DataLoaderOptions train_loader_options(const TrainCommandOptions& options, torch::Device device) {
  data::DataLoaderOptions loader = loader_options(options, device);
  if (options.batch_per_machine) {
    loader.machine_batch_size = options.batch_size;
  } else {
    loader.batch_size = options.batch_size;
  }
  loader.shuffle = true;
  return loader;
}

// `train_batch`: that of this rank, its share of a machine's.
data::DataLoaderOptions test_loader_options(const TrainCommandOptions& options, torch::Device device,
                                            std::int64_t train_batch) {
  data::DataLoaderOptions loader = loader_options(options, device);
  loader.batch_size = options.test_batch_size > 0 ? options.test_batch_size : train_batch;
  loader.exact = true;
  return loader;
}

TrainerOptions trainer_options(const TrainCommandOptions& o, torch::Device device,
                               const std::filesystem::path& output) {
  TrainerOptions t;
  t.epochs = o.epochs;
  t.device = device;
  t.precision = o.precision == TrainCommandPrecision::kBFloat16  ? TrainingPrecision::kBFloat16
                : o.precision == TrainCommandPrecision::kFloat16 ? TrainingPrecision::kFloat16
                                                                 : TrainingPrecision::kFloat32;
  t.channels_last = o.channels_last;
  t.fused = o.fused;
  t.scheduler_interval = o.interval == Interval::kStep || o.schedule == "one_cycle" ? TrainerOptions::Interval::kStep
                                                                                    : TrainerOptions::Interval::kEpoch;
  t.accumulation = o.accumulation;
  t.clip_grad_norm = o.clip_grad_norm;
  t.ema_decay = o.ema_decay;
  t.non_finite = o.non_finite == NonFinite::kIgnore ? std::nullopt
                 : o.non_finite == NonFinite::kSkip ? std::optional(NonFinitePolicy::kSkip)
                                                    : std::optional(NonFinitePolicy::kError);
  t.seed = static_cast<std::uint64_t>(o.seed);
  t.limit_batches = o.limit_batches;
  t.evaluate_every = o.evaluate_every;
  t.monitor = o.monitor == Metric::kLoss ? Monitor::kLoss : Monitor::kAccuracy;
  t.patience = o.patience;
  t.min_delta = o.min_delta;
  if (o.save) t.checkpoint_dir = output / kCheckpointsName;
  t.keep_last = o.keep_last;
  t.checkpoint_every_steps = o.every_steps;
  t.asynchronous_checkpoints = o.asynchronous;
  t.resume = o.resume;
  t.profile_steps = o.profile_steps;
  t.profile_file = output / kProfileName;
  return t;
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// The first one that is not left out, because its picture is corrupt (data.on_corrupt: skip).
torch::Tensor first_sample(const char* key, const data::Dataset& dataset) {
  if (dataset.size() == 0) throw std::runtime_error(fmt::format("{}: there are no samples", key));
  constexpr std::int64_t kMostTries = 64;  // as many corrupt pictures in a row are a mistake
  for (std::int64_t index = 0;; ++index) {
    try {
      return data::one_sample(dataset, index, {}).data;
    } catch (const data::SkippedSample&) {
      if (index + 1 == std::min(kMostTries, dataset.size())) throw;
    }
  }
}

// A folder that is not there would be made in the nearest one that is.
Status check_writable(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(folder, error);
  while (nearest.has_relative_path() &&
         std::filesystem::symlink_status(nearest, error).type() == std::filesystem::file_type::not_found) {
    nearest = nearest.parent_path();
  }
  int reason = 0;
  if (!std::filesystem::is_directory(nearest, error)) {
    reason = error ? error.value() : ENOTDIR;
  } else if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    reason = errno;
  }
  if (reason == 0) return {};
  return Status::from_errno(fmt::format("cannot write to {}", printable(nearest.native())), reason)
      .with_context(printable(folder.native()));
}

// Whether a training could write to this folder, for a dry run: makes and changes nothing. Does not see a full disk.
void check_output(const TrainCommandOptions& options, const std::filesystem::path& folder) {
  const std::filesystem::path log = folder / report::kRunLogName;
  std::error_code ignored;
  Status status = std::filesystem::exists(log, ignored) ? report::AppendFile::check_lines(log) : check_writable(folder);
  if (status.ok()) status = check_writable(folder / kSummaryName);
  if (status.ok() && options.save) status = check_writable(folder / kCheckpointsName);
  if (!status.ok()) throw std::runtime_error("output: " + status.message());
}

// Everything that the command needs for the training.
struct TrainCommand {
  TrainCommand(const TrainCommandOptions& the_options, const CudaSupport& cuda)
      : options(the_options),
        device(device_of(options, cuda)),
        pictures(open_data(options)),
        train(pictures.train, train_loader_options(options, device)),
        sample(first_sample("data.train", *pictures.train)) {
    if (pictures.test) {
      test.emplace(pictures.test, test_loader_options(options, device, train.batch_size()));
      worst.emplace(pictures.test, pictures.classes, test->batch_size());
    }
    torch::manual_seed(static_cast<std::uint64_t>(options.seed));
    model = make_model(options, pictures, sample);
    if (pictures.test) try_test_sample(model, options, first_sample("data.test", *pictures.test));
    model.model->to(device);
    optimizer = make_optimizer(options, model.model->parameters());
    schedule = make_schedule(options, *optimizer, steps());
  }

  std::int64_t batches_of(const data::DataLoader& loader) const {
    return options.limit_batches > 0 ? std::min(loader.size(), options.limit_batches) : loader.size();
  }
  std::int64_t steps() const { return ceil_divide(batches_of(train), options.accumulation); }
  // The number of the evaluation's present batch. The loader leaves out batches whose pictures are all corrupt, so they
  // cannot be counted here. After the last batch `batches_left` is that of a whole pass.
  std::int64_t test_batch() const { return test->size() - 1 - test->batches_left() % test->size(); }
  StepOutput run(data::Example& batch) {
    torch::Tensor scores = model.forward.forward(batch.data);
    if (worst && !model.model->is_training()) worst->add(batch, scores, test_batch() * test->batch_size());
    const auto loss_options = torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(options.label_smoothing);
    return {torch::nn::functional::cross_entropy(scores, batch.target, loss_options), scores};
  }

  const TrainCommandOptions& options;
  torch::Device device;
  TrainCommandData pictures;
  data::DataLoader train;
  torch::Tensor sample;
  std::optional<data::DataLoader> test;
  std::optional<WorstSamples> worst;  // of the evaluation
  TrainCommandModel model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<optim::LRScheduler> schedule;
};

void print_plan(const TrainCommand& command) {
  const auto parameters = command.model.model->parameters();
  std::int64_t numbers = 0;
  for (const torch::Tensor& parameter : parameters) numbers += parameter.numel();
  const std::int64_t weights = bytes_of(parameters);
  const std::int64_t copies = 2 + state_factor(command.options) + (command.options.ema_decay > 0 ? 1 : 0);
  const std::int64_t batch = command.train.batch_size() * static_cast<std::int64_t>(command.sample.nbytes());
  std::printf("model       %s: %lld parameters, %lld classes\n", command.options.model.c_str(),
              static_cast<long long>(numbers), static_cast<long long>(command.model.num_classes));
  std::printf("training    %lld samples of %s, %zu classes\n", static_cast<long long>(command.pictures.train->size()),
              c10::str(command.sample.sizes()).c_str(), command.pictures.classes.size());
  if (command.test) {
    std::printf("evaluation  %lld samples, batches of %lld\n", static_cast<long long>(command.pictures.test->size()),
                static_cast<long long>(command.test->batch_size()));
  }
  std::printf("ranks       %d on %s, batches of %lld\n", get_world_size(), command.device.str().c_str(),
              static_cast<long long>(command.train.batch_size()));
  const auto epochs = static_cast<long long>(command.options.epochs);
  std::printf("steps       %lld in an epoch, %lld in %lld epoch%s\n", static_cast<long long>(command.steps()),
              static_cast<long long>(command.steps()) * epochs, epochs, epochs == 1 ? "" : "s");
  std::printf("memory      %s a rank for weights, gradients and optimizer; %s a batch; activations come on top\n",
              mebibytes(weights * copies).c_str(), mebibytes(batch).c_str());
  std::fflush(stdout);
}

int train(TrainCommand& command, TrainerOptions settings, const std::filesystem::path& output) {
  TrainCommandReport report(command.options, output, command.pictures.classes, command.steps(),
                            command.worst ? &*command.worst : nullptr, command.model.model.get());
  settings.callbacks = report.callbacks();
  std::optional<Trainer> trainer;
  const auto step = [&](data::Example& batch) {
    if (command.model.model->is_training()) return command.run(batch);
    report.begin_test_batch(trainer->epoch() - 1, command.batches_of(*command.test));
    StepOutput output = command.run(batch);
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
  const ProcessGroupGuard group;
  TrainCommand command(options, cuda);
  if (!command.model.weights_note.empty() && get_rank() == 0) {
    std::printf("%s\n", command.model.weights_note.c_str());
    std::fflush(stdout);
  }
  const std::filesystem::path output = TrainCommandReport::folder(options);
  if (options.dry_run) {
    if (get_rank() != 0) return 0;
    check_output(options, output);
    print_plan(command);
    return 0;
  }
  TrainerOptions trainer_settings = trainer_options(options, command.device, output);
  trainer_settings.scheduler = command.schedule;
  trainer_settings.classes = command.pictures.classes;
  // Each batch of an evaluation makes matrices of this size squared: 32 MiB here, 4 GiB for 22 thousand classes.
  constexpr std::int64_t kMostConfusionClasses = 2048;
  if (command.model.num_classes <= kMostConfusionClasses)
    trainer_settings.confusion_classes = command.model.num_classes;
  use_fast_batch_norm();
  use_fast_convolution();
  return train(command, std::move(trainer_settings), output);
}

}  // namespace

int run_train_command(const TrainCommandOptions& options) {
  try {
    return run(options);
  } catch (const c10::Error& error) {  // what() has twenty lines of LibTorch's functions
    throw std::runtime_error(plain_text(error));
  }
}

}  // namespace lockstep::trainer_detail
