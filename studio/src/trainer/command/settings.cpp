// What a training and an evaluation make of the same options, and what a training would find wrong with its folder.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "base/printable.h"
#include "c10d/cuda_library.h"
#include "lockstep/base/log.h"
#include "lockstep/base/status.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/data/errors.h"
#include "lockstep/report/run_log.h"
#include "report/append_file.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {

// A training on the CPU does not pay for CUDA; nor does `auto` in a build without NCCL, where it means the CPU.
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

namespace {

// Of both loaders.
data::DataLoaderOptions loader_options(const TrainCommandOptions& options, torch::Device device) {
  data::DataLoaderOptions loader;
  loader.seed = static_cast<std::uint64_t>(options.seed);
  // These are in memory: their batches take less time than handing them over.
  if (options.format != DataFormat::kMnist && options.format != DataFormat::kFake) {
    if (options.workers < 0) {
      loader.num_workers = data::kAutoWorkers;
    } else {
      loader.machine_workers = options.workers;
    }
  }
  if (!device.is_cpu()) loader.device = device;
  return loader;
}

}  // namespace

data::DataLoaderOptions train_loader_options(const TrainCommandOptions& options, const TrainCommandData& data,
                                             torch::Device device) {
  data::DataLoaderOptions loader = loader_options(options, device);
  if (options.batch_per_machine) {
    loader.machine_batch_size = options.batch_size;
  } else {
    loader.batch_size = options.batch_size;
  }
  if (options.class_balance == ClassBalance::kSampling) {
    loader.sampler =
        std::make_shared<const data::WeightedSampler>(data::balanced_weights(data.labels), std::ssize(data.labels));
  } else {
    loader.shuffle = true;
  }
  return loader;
}

data::DataLoaderOptions test_loader_options(const TrainCommandOptions& options, torch::Device device,
                                            std::int64_t batch_size) {
  data::DataLoaderOptions loader = loader_options(options, device);
  loader.batch_size = batch_size;
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
  t.compare_every = o.compare_every;
  if (o.elastic) t.elastic.emplace();
  t.evaluate_every = o.evaluate_every;
  for (const std::int64_t k : o.top_k) {
    if (k > 1) t.top_k.push_back(k);
  }
  t.monitor = o.monitor == Metric::kLoss ? Monitor::kLoss : Monitor::kAccuracy;
  t.patience = o.patience;
  t.min_delta = o.min_delta;
  if (o.save) t.checkpoint_dir = output / kCheckpointsName;
  t.keep_last = o.keep_last;
  t.checkpoint_every_steps = o.every_steps;
  t.asynchronous_checkpoints = o.asynchronous;
  t.resume = o.resume;
  return t;
}

void try_samples(const char* key, const data::Dataset& dataset) {
  constexpr std::int64_t kMost = 16;
  const std::int64_t count = std::min(kMost, dataset.size());
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) {
    indices.push_back(count == 1 ? 0 : i * (dataset.size() - 1) / (count - 1));
  }
  with_key(key, [&] {
    // A round for each of them at most.
    for (std::int64_t round = 0; round < count && !indices.empty(); ++round) {
      try {
        dataset.get_batch(indices);
        return;
      } catch (const data::SamplesToReplace& corrupt) {  // a loader would take others
        std::erase_if(indices, [&](std::int64_t index) {
          return std::count(corrupt.indices().begin(), corrupt.indices().end(), index) > 0;
        });
      } catch (const data::SkippedSample&) {  // all of them: a loader would take others
        return;
      }
    }
  });
}

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

StepOutput forward(TrainCommandModel& model, const TrainCommandOptions& options, const data::Example& batch) {
  if (model.model->is_training()) {
    for (const auto& frozen : model.frozen) {
      if (frozen->is_training()) frozen->eval();
    }
  }
  torch::Tensor scores = model.forward.forward(batch.data);
  namespace F = torch::nn::functional;
  const auto loss = F::CrossEntropyFuncOptions().label_smoothing(options.label_smoothing);
  if (model.model->is_training()) {
    const auto balanced = F::CrossEntropyFuncOptions(loss).weight(model.class_weights);
    return {F::cross_entropy(scores, batch.target, balanced), scores};
  }
  // An evaluation adds up the samples' losses as doubles: how they are split into batches and ranks hardly matters.
  const torch::Tensor losses =
      F::cross_entropy(scores, batch.target, F::CrossEntropyFuncOptions(loss).reduction(torch::kNone));
  return {losses.to(torch::kDouble).mean(), scores};
}

namespace {

namespace fs = std::filesystem;

// A folder that is not there would be made in the nearest one that is.
Status check_writable(const fs::path& folder) {
  std::error_code error;
  fs::path nearest = fs::absolute(folder, error);
  while (nearest.has_relative_path() && fs::symlink_status(nearest, error).type() == fs::file_type::not_found) {
    nearest = nearest.parent_path();
  }
  int reason = 0;
  if (!fs::is_directory(nearest, error)) {
    reason = error ? error.value() : ENOTDIR;
  } else if (::access(nearest.c_str(), W_OK | X_OK) != 0) {
    reason = errno;
  }
  if (reason == 0) return {};
  return Status::from_errno(fmt::format("cannot write to {}", printable(nearest.native())), reason)
      .with_context(printable(folder.native()));
}

}  // namespace

void check_output(const TrainCommandOptions& options, const fs::path& folder) {
  const fs::path log = folder / report::kRunLogName;
  std::error_code ignored;
  Status status = fs::exists(log, ignored) ? report::AppendFile::check_lines(log) : check_writable(folder);
  if (status.ok()) status = check_writable(folder / kSummaryName);
  if (status.ok() && options.save) status = check_writable(folder / kCheckpointsName);
  if (!status.ok()) throw std::runtime_error("output: " + status.message());
}

}  // namespace lockstep::trainer_detail
