// Classifies a picture with torchvision's weights:
//
//   python -c "import torch, torchvision; torch.save(
//              torchvision.models.resnet50(weights='IMAGENET1K_V1').state_dict(), 'resnet50.pt')"
//   ./pretrained resnet50 resnet50.pt dog.jpg
//
// Prints the five largest logits, with the numbers of their classes, which are Python's for the same picture. (Weights
// that torchvision calls IMAGENET1K_V2 work too, but Python resizes their pictures to 232 instead of 256.)
#include <lockstep/image/decode.h>
#include <lockstep/lockstep.h>
#include <lockstep/transforms/compose.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace checkpoint = lockstep::checkpoint;
namespace data = lockstep::data;
namespace models = lockstep::models;

namespace {

torch::nn::AnyModule make_model(const std::string& name, std::int64_t classes) {
  const std::map<std::string, std::function<torch::nn::AnyModule()>> makers = {
      {"resnet18", [&] { return torch::nn::AnyModule(models::resnet18({.num_classes = classes})); }},
      {"resnet34", [&] { return torch::nn::AnyModule(models::resnet34({.num_classes = classes})); }},
      {"resnet50", [&] { return torch::nn::AnyModule(models::resnet50({.num_classes = classes})); }},
      {"resnet101", [&] { return torch::nn::AnyModule(models::resnet101({.num_classes = classes})); }},
      {"mobilenet_v3_small",
       [&] { return torch::nn::AnyModule(models::mobilenet_v3_small({.num_classes = classes})); }},
      {"vit_b_16", [&] { return torch::nn::AnyModule(models::vit_b_16({.num_classes = classes})); }},
  };
  const auto found = makers.find(name);
  if (found == makers.end()) throw std::invalid_argument("no model is called " + name);
  return found->second();
}

// The last layer says how many classes there are.
std::int64_t classes_of(const checkpoint::StateDict& state) {
  for (const char* name : {"fc.bias", "classifier.3.bias", "heads.head.bias"})
    if (state.contains(name)) return state[name].numel();
  throw std::invalid_argument("the weights have no last layer of a known name");
}

// As the transforms() of the weights IMAGENET1K_V1 do it in Python.
torch::Tensor read_picture(const std::string& path) {
  const auto picture = data::decode_image(path);
  if (!picture.ok()) throw std::invalid_argument(picture.status().message());
  const data::Compose transforms({data::Resize{256}, data::CenterCrop{224}, data::ToTensor{},
                                  data::Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}},
                                 data::Precision::kExact);
  torch::Tensor pixels = torch::empty({1, 3, 224, 224});
  transforms.apply(transforms.draw(picture.value().size(), {}), picture.value(), pixels.data_ptr());
  return pixels;
}

void classify(const std::string& name, const std::string& weights, const std::string& picture) {
  const checkpoint::StateDict state = checkpoint::read_state_dict(weights);
  torch::nn::AnyModule model = make_model(name, classes_of(state));
  checkpoint::load_state_dict(*model.ptr(), state);
  model.ptr()->eval();
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = model.forward(read_picture(picture))[0];
  const auto [values, classes] = logits.topk(std::min<std::int64_t>(5, logits.numel()));
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    std::printf("class %lld: %.4f\n", static_cast<long long>(classes[i].item<std::int64_t>()),
                values[i].item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL WEIGHTS PICTURE\n", argv[0]);
    return 2;
  }
  try {
    classify(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pretrained: %s\n", error.what());
    return 1;
  }
}
