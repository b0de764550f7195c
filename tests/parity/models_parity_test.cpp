// Our models with torchvision's weights, beside torchvision's: names, first weights, logits, gradients and a training
// step. models.py makes the weights.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/models/mobilenet_v3.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/vision_transformer.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::models {
namespace {

using Dict = c10::impl::GenericDict;
using torch::Tensor;
using torch::nn::AnyModule;

constexpr VisionTransformerOptions kSmallVit{.image_size = 32, .patch_size = 8, .num_classes = 10};

const std::map<std::string, std::function<AnyModule()>>& makers() {
  static const std::map<std::string, std::function<AnyModule()>> all = {
      {"resnet18", [] { return AnyModule(resnet18({.num_classes = 10})); }},
      {"resnet34", [] { return AnyModule(resnet34()); }},
      {"resnet50", [] { return AnyModule(resnet50({.num_classes = 10})); }},
      {"resnet101", [] { return AnyModule(resnet101()); }},
      {"mobilenet_v3_small", [] { return AnyModule(mobilenet_v3_small({.num_classes = 10})); }},
      {"vit_tiny", [] { return AnyModule(vit_tiny(kSmallVit)); }},
      {"vit_b_16", [] { return AnyModule(vit_b_16()); }},
  };
  return all;
}

std::vector<std::string> texts(const c10::IValue& list) {
  std::vector<std::string> result;
  for (const c10::IValue& text : list.toListRef()) result.push_back(text.toStringRef());
  return result;
}

// As in models.py.
double digest(const Tensor& tensor) {
  const Tensor flat = tensor.detach().flatten().slice(0, 0, std::nullopt, 61).to(torch::kDouble);
  return (flat * torch::cos(torch::arange(flat.numel(), torch::kDouble))).sum().item<double>();
}

void expect_close(const Tensor& ours, const Tensor& theirs, double tolerance, const std::string& what) {
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << what;
  const double difference = (ours - theirs).to(torch::kDouble).abs().max().item<double>();
  EXPECT_LE(difference, tolerance) << what;
}

// The same seed gives torchvision's first weights, bit for bit. conv_proj.weight has a truncated normal distribution,
// which PyTorch has drawn in several ways over time.
void expect_first_weights(const torch::nn::Module& module, const Dict& digests) {
  for (const auto& item : module.named_parameters()) {
    if (item.key() == "conv_proj.weight") {
      EXPECT_NEAR(item.value().std().item<double>() * std::sqrt(item.value()[0].numel()), 1.0, 0.05);
      continue;
    }
    const double theirs = digests.at(item.key()).toDouble();
    EXPECT_NEAR(digest(item.value()), theirs, 1e-9 * (1 + std::abs(theirs))) << item.key();
  }
}

void expect_step(AnyModule& model, const Dict& step) {
  const auto module = model.ptr();
  module->train();
  torch::manual_seed(7);
  torch::optim::SGD optimizer(module->parameters(), 0.05);
  const Tensor loss =
      torch::nn::functional::cross_entropy(model.forward(step.at("x").toTensor()), step.at("y").toTensor());
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), step.at("loss").toDouble(), 1e-5);
  const Dict gradients = step.at("gradients").toGenericDict();
  for (const auto& item : module->named_parameters()) {
    const Tensor theirs = gradients.at(item.key()).toTensor();
    const double largest = theirs.abs().max().item<double>();
    expect_close(item.value().grad(), theirs, 1e-6 + 1e-4 * largest, "gradient of " + item.key());
  }
  optimizer.step();
  const checkpoint::StateDict after = checkpoint::state_dict(*module);
  for (const auto& item : checkpoint::to_state_dict(step.at("after")))
    expect_close(after[item.key()], item.value(), 1e-5, item.key() + " after a step");
}

TEST(ModelsParity, WeightsLogitsAndAStepAreTorchvisions) {
  torch::set_num_threads(1);
  const test::ScratchFolder folder;
  test::run_python("models.py", {folder.path()});
  for (const auto& [name, make] : makers()) {
    SCOPED_TRACE(name);
    const Dict expected = checkpoint::read_torch_file(folder.path(name + ".expected.pt")).toGenericDict();
    torch::manual_seed(5);
    AnyModule model = make();
    const auto module = model.ptr();
    EXPECT_EQ(module->named_parameters().keys(), texts(expected.at("parameters")));
    EXPECT_EQ(module->named_buffers().keys(), texts(expected.at("buffers")));
    expect_first_weights(*module, expected.at("digests").toGenericDict());
    checkpoint::load_state_dict(*module, checkpoint::read_state_dict(folder.path(name + ".pt")));
    module->eval();
    {
      const torch::NoGradGuard no_grad;
      const Tensor logits = expected.at("logits").toTensor();
      EXPECT_GT(logits.abs().max().item<double>(), 0.1);
      expect_close(model.forward(expected.at("x").toTensor()), logits, 1e-5, "logits");
    }
    if (expected.contains("step")) expect_step(model, expected.at("step").toGenericDict());
  }
}

}  // namespace
}  // namespace lockstep::models
