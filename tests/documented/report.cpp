// Code of docs/reports.md and of the headers of report, as it stands there.
#include "lockstep/report/report.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/errors.h"
#include "lockstep/report/part_timer.h"
#include "lockstep/report/progress.h"
#include "lockstep/report/run_log.h"
#include "lockstep/report/stragglers.h"
#include "lockstep/report/summary_writer.h"

namespace lockstep::report {
namespace {

using Batch = std::vector<float>;

double train_on(const Batch& batch) {
  return batch.empty() ? 0.0 : static_cast<double>(batch.front());
}

[[maybe_unused]] void run_log(int rank, int world_size, double loss, double seconds) {
  const std::int64_t epoch = 0;
  const std::int64_t step = 0;
  const std::int64_t samples = 0;
  const double mean_loss = loss;
  RunLog log;
  if (rank == 0) log = data::value_or_throw(RunLog::open("runs/first"));
  log.start({.configuration = {{"lr", 0.1}, {"model", "resnet18"}}, .world_size = world_size});
  log.step(epoch, step, {{"loss", loss}});
  log.epoch(epoch, {.seconds = seconds, .samples = samples, .scalars = {{"loss", mean_loss}}});
  log.end();
}

[[maybe_unused]] void progress(int rank, std::int64_t epochs, const std::vector<Batch>& loader) {
  const std::int64_t steps = std::ssize(loader);
  const std::int64_t samples_of_all_ranks = 64;
  Progress progress({.epochs = epochs, .shown = rank == 0});
  PartTimer timer(Part::kInput);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    progress.begin("train", epoch, steps);
    for (const Batch& batch : loader) {  // waiting for the loader is input
      timer.begin(Part::kCompute);
      const double loss = train_on(batch);
      timer.begin(Part::kInput);  // what comes next
      progress.step(samples_of_all_ranks, loss, timer.lap());
    }
    progress.end("test accuracy 91.2 %");
  }
}

[[maybe_unused]] void tensorboard(int rank, double loss, std::int64_t step) {
  SummaryWriter writer;
  if (rank == 0) writer = data::value_or_throw(SummaryWriter::open("runs/first"));
  writer.add_scalar("loss/train", loss, step);
}

[[maybe_unused]] void confusion(RunLog& log, std::int64_t epoch) {
  log.confusion(epoch, std::vector<std::int64_t>{480, 20, 35, 465});  // cats: 480 right, 20 taken for dogs
}

[[maybe_unused]] void slow_ranks(RunLog& log, std::span<const RankTimes> ranks) {
  const std::string slow = stragglers_text(stragglers(ranks));  // "rank 3 on node2: 31 % more work than the median"
  if (!slow.empty()) log.note("stragglers: " + slow);
}

[[maybe_unused]] Status reading() {
  const Result<RunRecord> run = read_run("runs/first");
  if (!run.ok()) return run.status();
  const double last_loss = scalar(run.value().epochs.back().scalars, "loss");
  static_cast<void>(last_loss);
  return write_report("runs/first");
}

}  // namespace
}  // namespace lockstep::report
