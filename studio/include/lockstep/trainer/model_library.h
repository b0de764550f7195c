// A model of your own for `lockstep train`, in a shared object:
//
//   std::shared_ptr<NetImpl> make_net(const lockstep::ModelRequest& request) {
//     return std::make_shared<NetImpl>(request);
//   }
//   LOCKSTEP_MODEL(make_net)
//
// config.yaml then says `model: {name: custom, shared_object: build/libnet.so}`. The module's forward takes pictures
// {N, channels, height, width} and returns scores {N, num_classes}. Build the shared object against the LibTorch that
// `lockstep train` has, and link LibTorch dynamically; another version is refused. A shared object that was built
// against a release of Lockstep with another ModelRequest is refused too.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

enum class TrainingPrecision;  // lockstep/trainer/trainer.h

struct ModelRequest {
  std::int64_t num_classes = 0;  // the data's number of classes, or model.num_classes
  std::int64_t channels = 3;     // shape of the first sample: channels, height, width
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::map<std::string, std::string> options = {};  // model.options
};

// How a program's own training uses the model: what `lockstep evaluate`, `predict` and `checkpoint export` must know.
struct CustomModelUse {
  std::vector<std::string> classes;          // names, in the order of their numbers
  std::vector<std::string> test_transforms;  // the evaluation's, as in config.yaml: "Resize(256)"
  std::vector<std::int64_t> input;           // shape of a picture after these transforms: {3, 224, 224}
  std::int64_t test_batch_size = 32;         // pictures in a batch of the evaluation
  std::vector<std::string> options = {};     // NAME=VALUE for ModelRequest
  TrainingPrecision precision = {};          // TrainerOptions::precision of the training; default kFloat32
};

// TrainerOptions::model_metadata of such a training. Its model_file can then be used as one of `lockstep train`
// (docs/using_models.md), with `--shared-object` of the same model. Throws c10::ValueError where a file with these
// values would be refused: no classes, classes with empty or equal names, an unknown transform, an impossible shape.
// Needs lockstep::studio, unlike the macro below.
std::map<std::string, std::string> custom_model_metadata(const CustomModelUse& use);

}  // namespace lockstep

// `make` takes a const ModelRequest& and returns a shared_ptr to a module. Use the macro once in a shared object.
#define LOCKSTEP_MODEL(make)                                                                                        \
  extern "C" __attribute__((visibility("default"))) const char* lockstep_model_torch_version() {                    \
    return TORCH_VERSION;                                                                                           \
  }                                                                                                                 \
  extern "C" __attribute__((visibility("default"))) std::size_t lockstep_model_request_size() {                     \
    return sizeof(lockstep::ModelRequest);                                                                          \
  }                                                                                                                 \
  extern "C" __attribute__((visibility("default"))) void lockstep_make_model(const lockstep::ModelRequest* request, \
                                                                             torch::nn::AnyModule* model) {         \
    *model = torch::nn::AnyModule(make(*request));                                                                  \
  }
