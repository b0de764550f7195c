// The program behind `lockstep train`, `evaluate`, `predict` and `checkpoint export`. `lockstep` executes it, so the
// launcher does not load LibTorch.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "base/standard_descriptors.h"
#include "lockstep/config/command_line.h"
#include "options/command.h"
#include "trainer/command/command.h"
#include "trainer/command/use_of_model_options.h"

namespace {

constexpr int kUsageError = 2;
constexpr const char* kFooter =
    "Options of the sections data, model and trainer that are not given are as in the model's training.";

void print_error(std::string_view text) {
  std::fprintf(stderr, "lockstep: %s\n", std::string(text).c_str());
}

// `lockstep evaluate`, `predict` and `checkpoint export`.
int use_model(int argc, char** argv) {
  namespace options = lockstep::options;
  options::Command app{.name = "lockstep", .help = "Models that `lockstep train` has trained."};
  lockstep::trainer_detail::EvaluateCommandOptions evaluation;
  options::Command& evaluate = app.add("evaluate", "Evaluate a trained model on pictures whose classes are known");
  evaluate.run = [&] { return run_evaluate_command(evaluation, *evaluate.table); };
  declare(evaluation, *evaluate.table);
  evaluate.footer = kFooter;
  lockstep::trainer_detail::PredictCommandOptions prediction;
  options::Command& predict = app.add("predict", "Say which classes a trained model gives pictures");
  predict.run = [&] { return run_predict_command(prediction, *predict.table); };
  declare(prediction, *predict.table);
  predict.footer = kFooter;
  lockstep::trainer_detail::ExportCommandOptions exporting;
  options::Command& checkpoint = app.add("checkpoint", "Files of models and training runs");
  options::Command& exported = checkpoint.add("export", "Write a trained model as TorchScript, and compare both");
  exported.run = [&] { return run_export_command(exporting, *exported.table); };
  declare(exporting, *exported.table);
  return options::run(app, {argv + 1, argv + argc});
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size fails with a reason, as on a full disk
  ::signal(SIGPIPE, SIG_IGN);  // a reader of the progress that has left (`| head`) ends no training
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "evaluate" || command == "predict" || command == "checkpoint") return use_model(argc, argv);
  if (command == "train") {
    --argc;
    ++argv;
  }
  lockstep::trainer_detail::TrainCommandOptions options;
  lockstep::config::Schema schema;
  lockstep::trainer_detail::declare(options, schema);
  const lockstep::Result<bool> configured = lockstep::config::configure(
      schema, argc, argv, /*words=*/nullptr, [&] { lockstep::trainer_detail::complete(options); });
  if (!configured.ok()) {
    print_error(configured.status().message());
    return kUsageError;
  }
  if (!configured.value()) return EXIT_SUCCESS;
  if (const lockstep::Status wrong = lockstep::trainer_detail::check(options, schema); !wrong.ok()) {
    print_error(wrong.message());
    return kUsageError;
  }
  try {
    return lockstep::trainer_detail::run_train_command(options);
  } catch (const std::exception& error) {
    print_error(error.what());
    return EXIT_FAILURE;
  }
}
