// `lockstep checkpoint export`: a trained model as TorchScript, which needs no code of the model.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"
#include "options/command.h"
#include "trainer/command/use_of_model.h"
#include "trainer/command/use_of_model_options.h"

namespace lockstep::trainer_detail {
namespace {

constexpr const char* kOption = "--torchscript";
// A trace of another size than these would show a size of the batch that has become a constant.
constexpr std::int64_t kTracedBatch = 2;
constexpr std::array<std::int64_t, 4> kComparedBatches{1, 2, 3, 8};
// Both compute the same operations, but LibTorch may join some of them in a script.
constexpr double kAllowed = 1e-5;

torch::Tensor random_pictures(const TrainedModel& file, std::int64_t count) {
  std::vector<std::int64_t> sizes{count};
  sizes.insert(sizes.end(), file.input.begin(), file.input.end());
  return torch::randn(sizes);
}

// The module's parameters and buffers, under their names. Shares them.
torch::jit::Module scripted_tree(const torch::nn::Module& module,
                                 const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module scripted(c10::QualifiedName("__torch__.lockstep.Model"), unit, /*shouldMangle=*/true);
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    scripted.register_parameter(entry.key(), entry.value(), /*is_buffer=*/false);
  }
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
    scripted.register_buffer(entry.key(), entry.value());
  }
  for (const auto& entry : module.named_children()) {
    scripted.register_module(entry.key(), scripted_tree(*entry.value(), unit));
  }
  scripted.register_attribute("training", c10::BoolType::get(), false);
  return scripted;
}

// Records the operations of one forward pass, as Python's torch.jit.trace() does.
torch::jit::Module traced(TrainCommandModel& model, const torch::Tensor& pictures) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module scripted = scripted_tree(*model.model, unit);
  const auto forward = [&](torch::jit::Stack inputs) -> torch::jit::Stack {
    return {model.forward.forward(inputs.at(0).toTensor())};
  };
  const auto no_name = [](const torch::Tensor& /*value*/) { return std::string(); };
  const auto [state, outputs] = torch::jit::tracer::trace({pictures}, forward, no_name, /*strict=*/true,
                                                          /*force_outplace=*/false, &scripted, {"pictures"});
  torch::jit::Function* function =
      unit->create_function(c10::QualifiedName(*scripted.type()->name(), "forward"), state->graph);
  scripted.type()->addMethod(function);
  return scripted;
}

// The script as its file has it, and the file.
struct Exported {
  std::string bytes;
  torch::jit::Module script;
};

Exported exported(TrainCommandModel& model, const TrainedModel& file) try {
  const torch::jit::Module script = traced(model, random_pictures(file, kTracedBatch));
  std::stringstream saved;
  script.save(saved, {file.metadata.begin(), file.metadata.end()});
  Exported made{std::move(saved).str(), {}};
  std::istringstream reader(made.bytes);
  made.script = torch::jit::load(reader);
  return made;
} catch (const std::exception& error) {
  throw std::runtime_error(fmt::format("{}: {} cannot be recorded as TorchScript: {}", printable(file.path),
                                       file.options.model, plain_text(error)));
}

[[noreturn]] void refuse_script(const TrainedModel& file, std::int64_t batch, const std::string& what) {
  throw std::runtime_error(fmt::format(
      "{}: the script of {} is not the model: for a batch of {} random pictures {}. A trace keeps the "
      "operations and numbers of one forward pass, of a batch of {}: forward() must not use the size of the "
      "batch as a number (flatten(1) or view({{-1, ...}}) in place of view({{x.size(0), ...}})), choose by "
      "values, draw at random or compute outside of LibTorch's operations. No file was written",
      printable(file.path), file.options.model, batch, what, kTracedBatch));
}

// The largest difference between the scores of both, relative to the largest score of the batch.
double compare(TrainCommandModel& model, torch::jit::Module& script, const TrainedModel& file) {
  double largest = 0;
  for (const std::int64_t batch : kComparedBatches) {
    const torch::Tensor pictures = random_pictures(file, batch);
    const torch::Tensor expected = model.forward.forward(pictures).to(torch::kDouble);
    if (!expected.isfinite().all().item<bool>()) {
      throw std::runtime_error(fmt::format(
          "{}: {} gives scores that are infinite or no number for random pictures (normally distributed, as pictures "
          "are after Normalize), so the script cannot be compared with it; a model that has learned such weights, or "
          "that takes roots or logarithms of its input, cannot be exported. No file was written",
          printable(file.path), file.options.model));
    }
    torch::Tensor found;
    try {
      found = script.forward({pictures}).toTensor().to(torch::kDouble);
    } catch (const std::exception& error) {
      refuse_script(file, batch, "it fails: " + plain_text(error));
    }
    if (found.sizes() != expected.sizes()) {
      refuse_script(file, batch,
                    fmt::format("its scores are {} and not {}", c10::str(found.sizes()), c10::str(expected.sizes())));
    }
    const double scale = expected.abs().max().item<double>();
    const double absolute = (found - expected).abs().max().item<double>();
    const double difference = absolute == 0 ? 0 : absolute / scale;
    if (!(difference <= kAllowed)) {  // NaN is none
      refuse_script(file, batch, fmt::format("the scores differ by {:.3g}", difference));
    }
    largest = std::max(largest, difference);
  }
  return largest;
}

int export_model(ExportCommandOptions& o, options::Table& table) {
  TrainedModel file = open_model(o.model, o.training, table);
  o.training.sync_batch_norm = false;  // in an evaluation it is an ordinary one, and needs no other ranks
  if (const Status wrong = check_use_of_model(o.training); !wrong.ok()) return options::fail(wrong);
  const Status place = check_output_path(o.torchscript, {file.path, o.training.shared_object}, kOption);
  if (!place.ok()) return options::fail(place);
  ResultFile out(o.torchscript, kOption);
  TrainCommandModel model = make_trained_model(file, o.training);
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  // The script is compared as it is written, without what LibTorch learns from some calls about their sizes.
  const torch::jit::GraphOptimizerEnabledGuard no_optimizer(false);
  Exported made = exported(model, file);
  const double difference = compare(model, made.script, file);
  out.write(made.bytes);
  out.close();
  std::printf("%s: %s, pictures [N, %s] to scores [N, %lld]\n", printable(o.torchscript).c_str(),
              file.options.model.c_str(), fmt::format("{}", fmt::join(file.input, ", ")).c_str(),
              static_cast<long long>(model.num_classes));
  std::printf("compared with the model on random pictures, batches of %s: the largest difference is %.3g\n",
              fmt::format("{}", fmt::join(kComparedBatches, ", ")).c_str(), difference);
  return EXIT_SUCCESS;
}

}  // namespace

void declare(ExportCommandOptions& o, options::Table& table) {
  auto top = table.section("", "");
  top.key("MODEL", o.model, "The file model.safetensors of a training, or the folder of its run").word();
  top.key("torchscript", o.torchscript, "The file to write, for torch::jit::load() and torch.jit.load()").required();
  declare_shared_object(o.training, table);
}

int run_export_command(ExportCommandOptions& options, options::Table& table) {
  return with_plain_errors([&] { return export_model(options, table); });
}

}  // namespace lockstep::trainer_detail
