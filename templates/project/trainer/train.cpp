// Trains the model on the data. Start it alone, or with `lockstep run` on several processes and machines.
#include <lockstep/config/command_line.h>
#include <lockstep/lockstep.h>
#include <lockstep/trainer/model_library.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "data/pictures.h"
#include "model/net.h"
#include "trainer/options.h"

namespace report = lockstep::report;

// What rank 0 shows: a bar on a terminal, and the log from which `lockstep report` and `lockstep scaling` make their
// pages. On other ranks both do nothing.
struct Shown {
  report::Progress progress;
  report::RunLog log = {};
};

void show_in(Shown& shown, const Options& options, const std::vector<std::string>& classes, int world_size,
             lockstep::TrainerCallbacks& callbacks) {
  report::RunLog& log = shown.log;
  callbacks.on_step_end = [&, world_size, epoch = std::int64_t{-1}](const lockstep::StepReport& step) mutable {
    if (epoch < 0) {  // a resumed training knows only now where it goes on
      log.start(
          {.configuration = {{"lr", options.lr}, {"momentum", options.momentum}, {"batch_size", options.batch_size}},
           .world_size = world_size,
           .classes = classes,
           .first_epoch = step.epoch,
           .first_step = step.step - 1});
    }
    if (std::exchange(epoch, step.epoch) != step.epoch)
      shown.progress.begin("train", step.epoch, step.batches, step.batch - 1);
    std::optional<double> loss;  // of a GPU only at the end of an epoch: reading the loss waits for the GPU
    if (step.loss.is_cpu()) loss = step.loss.item<double>();
    shown.progress.step(step.samples * world_size, loss);
  };
  callbacks.on_epoch_end = [&, world_size](const lockstep::EpochReport& epoch) {
    shown.progress.end();
    log.epoch(epoch.epoch, {.seconds = epoch.seconds, .samples = epoch.samples, .scalars = {{"loss", epoch.loss}}});
    const report::RankTimes times{.seconds = epoch.seconds_by_part(world_size)};
    log.times(epoch.epoch, {&times, 1});
  };
  callbacks.on_evaluation = [&](const lockstep::Evaluation& found) {
    log.evaluation(found.epoch, {.seconds = found.seconds,
                                 .samples = found.samples,
                                 .scalars = {{"loss", found.loss}, {"accuracy", found.accuracies[0]}}});
    const torch::Tensor confusion = found.confusion.cpu().contiguous();
    log.confusion(found.epoch, {confusion.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(confusion.numel())});
    if (lockstep::get_rank() != 0) return;
    std::printf("epoch %lld: test loss %.3f, accuracy %.1f %%\n", static_cast<long long>(found.epoch + 1), found.loss,
                100 * found.accuracies[0]);
    std::fflush(stdout);
  };
}

// The sizes of a picture after the transforms, of the first one that can be read.
std::vector<std::int64_t> picture_sizes(const lockstep::data::Dataset& pictures) {
  for (std::int64_t i = 0;; ++i) {
    try {
      return pictures.get(i).data.sizes().vec();
    } catch (const lockstep::data::SkippedSample&) {
      if (i + 1 == pictures.size()) throw;
    }
  }
}

// What this training made, and how to go on.
void print_end(const lockstep::TrainingResult& result, const std::filesystem::path& folder) {
  const bool interrupted = result.end == lockstep::TrainingEnd::kInterrupted;
  std::printf("%s after %lld epochs, %lld steps; saved in %s%s\n", interrupted ? "interrupted" : "finished",
              static_cast<long long>(result.epochs), static_cast<long long>(result.steps),
              (folder / "checkpoints").c_str(), interrupted ? "; --resume goes on from there" : "");
  if (result.best_metric)
    std::printf("best accuracy: %.1f %%; the model: %s\n", 100 * *result.best_metric,
                (folder / "model.safetensors").c_str());
}

int train(const Options& options) {
  const lockstep::ProcessGroupGuard group;
  auto pictures = open_pictures(options.train, options.transforms, options.on_corrupt);
  auto test_pictures = open_pictures(options.test, options.test_transforms, options.on_corrupt);
  const std::vector<std::string> classes = pictures.classes();
  if (test_pictures.classes() != classes) {
    throw std::runtime_error("data.test: " + options.test + " has other classes than " + options.train +
                             "; expected subfolders of the same names");
  }
  const auto seed = static_cast<std::uint64_t>(options.seed);
  const std::int64_t samples = pictures.size();
  const std::int64_t test_samples = test_pictures.size();
  const std::vector<std::int64_t> input = picture_sizes(test_pictures);
  lockstep::data::DataLoader train_loader(
      std::move(pictures),
      {.batch_size = options.batch_size, .shuffle = true, .seed = seed, .num_workers = lockstep::data::kAutoWorkers});
  lockstep::data::DataLoader test_loader(std::move(test_pictures), {.batch_size = options.batch_size, .exact = true});
  torch::manual_seed(seed);
  Net net(static_cast<std::int64_t>(classes.size()));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum));

  lockstep::TrainerOptions settings{.epochs = options.epochs};
  settings.seed = seed;
  settings.monitor = lockstep::Monitor::kAccuracy;
  settings.confusion_classes = static_cast<std::int64_t>(classes.size());
  settings.classes = classes;  // a training of other classes does not go on with these checkpoints
  const std::filesystem::path folder = report::run_folder(options.output);
  settings.checkpoint_dir = folder / "checkpoints";
  settings.resume = options.resume;
  settings.model_file = folder / "model.safetensors";  // of the best evaluation, for `lockstep predict`
  settings.model_metadata = lockstep::custom_model_metadata({.classes = classes,
                                                             .test_transforms = options.test_transforms,
                                                             .input = input,
                                                             .test_batch_size = options.batch_size,
                                                             .precision = settings.precision});
  Shown shown{.progress =
                  report::Progress({.epochs = options.epochs, .shown = group.rank() == 0, .fd = STDOUT_FILENO})};
  if (group.rank() == 0) shown.log = lockstep::data::value_or_throw(report::RunLog::open(folder));
  show_in(shown, options, classes, group.world_size(), settings.callbacks);
  lockstep::use_fast_batch_norm();  // on the CPU, for the whole process
  lockstep::use_fast_convolution();
  lockstep::Trainer trainer(net, optimizer, settings);
  if (group.rank() == 0) {
    std::printf("%lld pictures of %zu classes, %lld test pictures; %d process(es), %s; %s\n",
                static_cast<long long>(samples), classes.size(), static_cast<long long>(test_samples),
                group.world_size(), trainer.device().str().c_str(), folder.c_str());
    std::fflush(stdout);
  }
  const lockstep::TrainingResult result =
      trainer.fit(train_loader, test_loader, [&](lockstep::data::Example& batch) -> lockstep::StepOutput {
        const torch::Tensor scores = net->forward(batch.data);
        return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
      });
  shown.progress.end();  // an interrupted training has left its bar
  if (result.end != lockstep::TrainingEnd::kInterrupted) shown.log.end();
  if (group.rank() == 0) print_end(result, folder);
  return result.signal == 0 ? 0 : 128 + result.signal;
}

int main(int argc, char** argv) {
  Options options;
  lockstep::config::Schema schema;
  declare(options, schema);
  const auto configured = lockstep::config::configure(schema, argc, argv);
  if (!configured.ok()) std::fprintf(stderr, "train: %s\n", configured.status().message().c_str());
  if (!configured.ok() || !configured.value()) return configured.ok() ? 0 : 2;
  try {
    lockstep::load_cuda();  // the GPUs, where there are some; before anything asks LibTorch for them
    return train(options);
  } catch (const c10::Error& error) {  // what() lists LibTorch's functions too
    std::fprintf(stderr, "train: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 1;
  }
}
