// `lockstep evaluate`: the evaluation of a training again, on these data or others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/image/folder_index.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "lockstep/nn/fast_convolution.h"
#include "lockstep/trainer/trainer.h"
#include "options/command.h"
#include "trainer/command/use_of_model.h"
#include "trainer/command/use_of_model_options.h"

namespace lockstep::trainer_detail {
namespace {

// A class in the confusion matrix.
struct ClassResult {
  std::string name;
  std::vector<std::int64_t> taken_for;  // samples of this class, by the class that the model gives
  std::int64_t samples = 0;
  std::int64_t correct = 0;
  std::int64_t predicted = 0;  // samples of all classes that were taken for this one

  // NaN: there is no such sample.
  double recall() const { return static_cast<double>(correct) / static_cast<double>(samples); }
  double precision() const { return static_cast<double>(correct) / static_cast<double>(predicted); }
};

struct Results {
  const EvaluateCommandOptions& options;
  const TrainedModel& model;
  const Evaluation& found;
  std::vector<std::int64_t> top_k;
  std::vector<ClassResult> classes;  // empty: more than kMostConfusionClasses
};

std::vector<ClassResult> classes_of(const Evaluation& found, const std::vector<std::string>& names) {
  std::vector<ClassResult> classes;
  if (!found.confusion.defined()) return classes;
  const torch::Tensor counts = found.confusion.contiguous();
  const std::int64_t count = counts.size(0);
  classes.resize(static_cast<std::size_t>(count));
  const std::int64_t* value = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    ClassResult& result = classes[static_cast<std::size_t>(row)];
    result.name = class_name(names, row);
    result.taken_for.assign(value + row * count, value + (row + 1) * count);
    for (std::int64_t column = 0; column < count; ++column) {
      const std::int64_t samples = value[row * count + column];
      result.samples += samples;
      if (row == column) result.correct = samples;
      classes[static_cast<std::size_t>(column)].predicted += samples;
    }
  }
  return classes;
}

std::string percent(double part) {
  return std::isnan(part) ? "-" : fmt::format("{:.2f} %", 100 * part);
}

std::string text_of(const Results& r) {
  std::string text =
      fmt::format("model     {}: {}, {} classes, after epoch {}\ndata      {}: {} samples\nloss      {:.4f}\n",
                  printable(r.model.path), r.options.training.model, r.model.classes.size(),
                  r.model.metadata.at("lockstep.epochs"), printable(r.options.data), r.found.samples, r.found.loss);
  text += fmt::format("accuracy  {}\n", percent(r.found.accuracies.at(0)));
  for (std::size_t i = 1; i < r.top_k.size(); ++i)
    text += fmt::format("{:<8}  {}\n", fmt::format("top-{}", r.top_k[i]), percent(r.found.accuracies.at(i)));
  std::size_t width = 5;
  for (const ClassResult& one : r.classes) width = std::max(width, one.name.size());
  if (!r.classes.empty()) text += fmt::format("\n{:<{}}  samples    recall  precision\n", "class", width);
  for (const ClassResult& one : r.classes) {
    text += fmt::format("{:<{}}  {:>7}  {:>8}   {:>8}\n", one.name, width, one.samples, percent(one.recall()),
                        percent(one.precision()));
  }
  constexpr std::size_t kMostShown = 20;
  if (r.classes.empty() || r.classes.size() > kMostShown) return text;
  text += "\nconfusion: a row for each class, a column for each class that the model gives\n";
  for (const ClassResult& one : r.classes) {
    text += fmt::format("{:<{}}", one.name, width);
    for (const std::int64_t samples : one.taken_for) text += fmt::format("  {:>6}", samples);
    text += '\n';
  }
  return text;
}

std::string csv_of(const Results& r) {
  std::string text = "class,samples,correct,recall,precision";
  for (const ClassResult& one : r.classes) text += "," + csv_field("predicted " + one.name);
  text += '\n';
  const auto number = [](double part) { return std::isnan(part) ? "" : fmt::format("{}", part); };
  for (const ClassResult& one : r.classes) {
    text += fmt::format("{},{},{},{},{}", csv_field(one.name), one.samples, one.correct, number(one.recall()),
                        number(one.precision()));
    for (const std::int64_t samples : one.taken_for) text += fmt::format(",{}", samples);
    text += '\n';
  }
  return text;
}

std::string json_of(const Results& r) {
  nlohmann::ordered_json json{{"model", r.model.path},
                              {"data", r.options.data},
                              {"samples", r.found.samples},
                              {"loss", r.found.loss},
                              {"accuracy", r.found.accuracies.at(0)}};
  for (std::size_t i = 0; i < r.top_k.size(); ++i) json["top_k"][std::to_string(r.top_k[i])] = r.found.accuracies.at(i);
  json["classes"] = nlohmann::ordered_json::array();
  json["confusion"] = nlohmann::ordered_json::array();
  for (const ClassResult& one : r.classes) {  // nlohmann writes NaN as null
    json["classes"].push_back({{"name", one.name},
                               {"samples", one.samples},
                               {"correct", one.correct},
                               {"recall", one.recall()},
                               {"precision", one.precision()}});
    json["confusion"].push_back(one.taken_for);
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// The samples to judge.
TrainCommandData open_evaluated(const EvaluateCommandOptions& o, const TrainedModel& file) {
  if (o.part == EvaluatedPart::kAll) return open_test_data(o.training, file.classes);
  const auto parts = file.metadata.find(kModelParts);
  if (o.training.validation_share == 0 || parts == file.metadata.end()) {
    throw std::runtime_error(fmt::format(
        "--part: {} is of a training without data.validation_share, which has no parts", printable(file.path)));
  }
  TrainCommandOptions split = o.training;
  split.seed = file.options.seed;  // whatever seed the transforms get here
  TrainCommandData data = open_test_data(split, file.classes, /*in_parts=*/true);
  if (const std::string found = text_of_parts(data); found != parts->second) {
    throw std::runtime_error(
        fmt::format("--part: {} now splits into {} samples, and had {} in the training (training and evaluation); its "
                    "pictures have changed",
                    printable(o.data), found, printable(parts->second)));
  }
  if (o.part == EvaluatedPart::kTraining) data.test = data.train;
  return data;
}

int evaluate(EvaluateCommandOptions& o, options::Table& table) {
  const TrainedModel file = open_model(o.model, o.training, table);
  TrainCommandOptions& training = o.training;
  if (const Status wrong = check_use_of_model(training); !wrong.ok()) return options::fail(wrong);
  std::vector<std::string> inputs{file.path, o.data};
  if (auto pictures = data::list_pictures(o.data); pictures.ok()) {
    inputs.insert(inputs.end(), pictures->begin(), pictures->end());
  }
  if (const Status wrong = check_output_path(o.output, inputs); !wrong.ok()) return options::fail(wrong);
  training.test = o.data;
  training.save = false;
  const CudaSupport cuda = find_cuda(training);
  const ProcessGroupGuard group;
  const torch::Device device = device_of(training, cuda);
  const TrainCommandData data = open_evaluated(o, file);
  TrainCommandModel model = make_trained_model(file, training);
  try_test_sample(model, training, first_sample("data", *data.test));
  TrainerOptions settings = trainer_options(training, device, {});
  settings.handle_signals = false;
  settings.top_k = {1};
  for (const std::int64_t k : o.top_k) {
    if (const Status wrong = check_top_k(k, model.num_classes); !wrong.ok()) return options::fail(wrong);
    if (k > 1) settings.top_k.push_back(k);
  }
  if (model.num_classes <= kMostConfusionClasses) settings.confusion_classes = model.num_classes;
  data::DataLoader loader(data.test, test_loader_options(training, device, training.test_batch_size));
  torch::optim::SGD optimizer(distinct_parameters(*model.model), 0.0);  // a Trainer needs one; it makes no step
  std::optional<ResultFile> out;  // now: where it cannot be written, nobody waits for the evaluation
  if (get_rank() == 0) out.emplace(o.output);
  use_fast_batch_norm();
  use_fast_convolution();
  const std::vector<std::int64_t> top_k = settings.top_k;
  Trainer trainer(model.model, optimizer, std::move(settings));
  const Evaluation found =
      trainer.evaluate(loader, [&](data::Example& batch) { return forward(model, training, batch); });
  if (!out) return EXIT_SUCCESS;
  const Results results{o, file, found, top_k, classes_of(found, file.classes)};
  out->write(o.format == ResultFormat::kJson  ? json_of(results)
             : o.format == ResultFormat::kCsv ? csv_of(results)
                                              : text_of(results));
  out->close();
  return EXIT_SUCCESS;
}

}  // namespace

void declare(EvaluateCommandOptions& o, options::Table& table) {
  auto top = table.section("", "");
  top.key("MODEL", o.model, "The file model.safetensors of a training, or the folder of its run").word();
  top.key("data", o.data, "Folder, pack or files of the evaluation, in the format of the training").required();
  top.key("part", o.part,
          {{"all", EvaluatedPart::kAll},
           {"training", EvaluatedPart::kTraining},
           {"evaluation", EvaluatedPart::kEvaluation}},
          "Of a training with data.validation_share and the folder of this training: the part that it has judged, or "
          "trained on");
  top.key("top_k", o.top_k, "Also the share of samples whose class is among the k best, for these k").at_least(1);
  top.key("format", o.format,
          {{"text", ResultFormat::kText}, {"csv", ResultFormat::kCsv}, {"json", ResultFormat::kJson}},
          "csv has the classes and their confusion alone");
  top.key("output", o.output, "The file to write. Empty: standard output");
  declare_use_of_model(o.training, table, /*has_classes=*/true);
}

int run_evaluate_command(EvaluateCommandOptions& options, options::Table& table) {
  return with_plain_errors([&] { return evaluate(options, table); });
}

}  // namespace lockstep::trainer_detail
