#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <filesystem>
#include <stdexcept>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/models/mnist_net.h"
#include "lockstep/models/mobilenet_v3.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/vision_transformer.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/trainer/model_library.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

using torch::nn::AnyModule;

ModelRequest request_for(const TrainCommandOptions& options, const TrainCommandData& data,
                         const torch::Tensor& sample) {
  ModelRequest request{
      .num_classes = options.num_classes > 0 ? options.num_classes : static_cast<std::int64_t>(data.classes.size()),
      .channels = sample.size(-3),
      .height = sample.size(-2),
      .width = sample.size(-1)};
  for (const std::string& option : options.model_options) {
    const std::size_t equals = option.find('=');
    request.options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  return request;
}

template <typename Function>
Function symbol(void* library, const std::string& path, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) {
    throw std::runtime_error(
        fmt::format("model.shared_object: {} has no {}; it must name its model with LOCKSTEP_MODEL "
                    "(lockstep/trainer/model_library.h)",
                    path, name));
  }
  return reinterpret_cast<Function>(found);
}

// The library's code reads the request as it lies in memory. One that does not tell its size is of an earlier release.
void check_request_size(void* library, const std::string& path) {
  void* found = ::dlsym(library, "lockstep_model_request_size");
  if (found != nullptr && reinterpret_cast<std::size_t (*)()>(found)() == sizeof(ModelRequest)) return;
  throw std::runtime_error(
      fmt::format("model.shared_object: {} was built against another release of Lockstep, whose ModelRequest is "
                  "another one than this program's; build it again with this release's headers",
                  path));
}

// The library stays loaded: the model's code is in it.
AnyModule from_library(const TrainCommandOptions& options, const ModelRequest& request) {
  const std::string path = std::filesystem::absolute(options.shared_object);
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(
        fmt::format("model.shared_object: cannot load {}: {}; expected a shared object that was built against "
                    "LibTorch " TORCH_VERSION ", which this program has",
                    path, ::dlerror()));
  }
  const auto version = symbol<const char* (*)()>(library, path, "lockstep_model_torch_version");
  if (std::string(version()) != TORCH_VERSION) {
    throw std::runtime_error(
        fmt::format("model.shared_object: {} was built against LibTorch {}, but this program has " TORCH_VERSION
                    "; build it again against that",
                    path, version()));
  }
  check_request_size(library, path);
  const auto make = symbol<void (*)(const ModelRequest*, AnyModule*)>(library, path, "lockstep_make_model");
  AnyModule model;
  try {
    make(&request, &model);
  } catch (const std::exception& error) {
    throw std::runtime_error(
        fmt::format("model.shared_object: {} cannot make its model for {} classes, pictures of {} x {} x {} and "
                    "model.options [{}]: {}",
                    path, request.num_classes, request.channels, request.height, request.width,
                    fmt::join(options.model_options, ", "), plain_text(error)));
  }
  if (model.is_empty()) throw std::runtime_error(fmt::format("model.shared_object: {} has made no model", path));
  return model;
}

AnyModule built_in(const TrainCommandOptions& o, const ModelRequest& r) {
  const models::ResNetOptions resnet{
      .num_classes = r.num_classes, .in_channels = r.channels, .small_images = o.small_images};
  const models::VisionTransformerOptions transformer{.image_size = picture_side(o),
                                                     .patch_size = o.patch_size,
                                                     .num_classes = r.num_classes,
                                                     .in_channels = r.channels};
  if (o.model == "resnet18") return AnyModule(models::resnet18(resnet));
  if (o.model == "resnet34") return AnyModule(models::resnet34(resnet));
  if (o.model == "resnet50") return AnyModule(models::resnet50(resnet));
  if (o.model == "resnet101") return AnyModule(models::resnet101(resnet));
  if (o.model == "vit_tiny") return AnyModule(models::vit_tiny(transformer));
  if (o.model == "vit_b_16") return AnyModule(models::vit_b_16(transformer));
  if (o.model == "mnist_net") return AnyModule(models::MnistNet());
  if (o.model == "mobilenet_v3_small") {
    return AnyModule(models::mobilenet_v3_small(
        {.num_classes = r.num_classes, .in_channels = r.channels, .small_images = o.small_images}));
  }
  refuse_name("model.name", o.model);
}

// One sample through the model, so that a wrong shape or a wrong number of classes is an error before the training.
std::int64_t scores_of(TrainCommandModel& made, const TrainCommandOptions& options, const torch::Tensor& sample,
                       bool is_test = false) {
  if (!sample.is_floating_point()) {
    throw std::runtime_error(fmt::format("{}: they give numbers of type {}; add ToTensor, which models need",
                                         is_test ? "data.test_transforms" : "data.transforms",
                                         c10::toString(sample.scalar_type())));
  }
  const torch::NoGradGuard no_grad;
  made.model->eval();
  torch::Tensor scores;
  try {
    scores = made.forward.forward(sample.unsqueeze(0));
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("model.name: {} cannot take the {}, {}: {}", options.model,
                                         is_test ? "samples of data.test" : "data's samples", c10::str(sample.sizes()),
                                         plain_text(error)));
  }
  made.model->train();
  if (scores.dim() != 2 || scores.size(0) != 1) {
    throw std::runtime_error(fmt::format("model.name: {} gives {} for one sample, expected [1, classes]", options.model,
                                         c10::str(scores.sizes())));
  }
  return scores.size(1);
}

}  // namespace

void try_test_sample(TrainCommandModel& model, const TrainCommandOptions& options, const torch::Tensor& sample) {
  scores_of(model, options, sample, /*is_test=*/true);
}

std::string why_not_alone(TrainCommandModel& model, const TrainCommandOptions& options, const torch::Tensor& sample) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& buffer : model.model->buffers()) before.push_back(buffer.clone());
  std::string reason;
  model.model->train();
  try {
    forward(model, options, {sample.unsqueeze(0), torch::zeros({1}, torch::kLong)});
  } catch (const std::exception& error) {
    reason = plain_text(error);
  }
  const std::vector<torch::Tensor> after = model.model->buffers();
  for (std::size_t i = 0; i < after.size(); ++i) torch::Tensor(after[i]).copy_(before.at(i));
  return reason;
}

std::runtime_error no_batch_of_one(const TrainCommandOptions& options, const std::string& where,
                                   const std::string& reason) {
  return std::runtime_error(
      fmt::format("trainer.batch_size: rank {}, {}: {} cannot train on a batch of 1; choose another "
                  "trainer.batch_size: {}",
                  get_rank(), where, options.model, reason));
}

TrainCommandModel make_model(const TrainCommandOptions& options, const TrainCommandData& data,
                             const torch::Tensor& sample) {
  const ModelRequest request = request_for(options, data, sample);
  TrainCommandModel made;
  made.forward = options.model == "custom" ? from_library(options, request) : built_in(options, request);
  made.model = made.forward.ptr();
  made.num_classes = scores_of(made, options, sample);
  if (made.num_classes < static_cast<std::int64_t>(data.classes.size())) {
    throw std::runtime_error(fmt::format(
        "model.name: {} has {} classes, but the data has {} ({} ... {}); {}", options.model, made.num_classes,
        data.classes.size(), printable(data.classes.front()), printable(data.classes.back()),
        options.num_classes > 0 ? "set model.num_classes to 0" : "take another model"));
  }
  if (options.num_classes > 0 && made.num_classes != options.num_classes) {
    throw std::runtime_error(fmt::format("model.num_classes: {} has {} classes, not {}; leave the key out",
                                         options.model, made.num_classes, options.num_classes));
  }
  if (!options.weights.empty()) made.weights_note = load_weights(*made.model, options, data.classes);
  if (options.sync_batch_norm) convert_sync_batchnorm(*made.model);
  return made;
}

}  // namespace lockstep::trainer_detail
