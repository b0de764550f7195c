// Which samples `lockstep train` takes, how they are transformed, mixed and weighed, and what does not train.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/models/resnet.h"
#include "lockstep/transforms/parse.h"
#include "nn/error_texts.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

std::vector<std::int64_t> ten_and_seven() {
  std::vector<std::int64_t> labels(17, 1);
  std::fill_n(labels.begin(), 10, 0);
  return labels;
}

TrainCommandData data_of(std::vector<std::int64_t> labels, std::vector<std::string> classes) {
  return {nullptr, nullptr, std::move(classes), std::move(labels)};
}

template <typename Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

std::string completed(TrainCommandOptions options) {
  complete(options);
  const auto text = [](const std::vector<std::string>& texts) {
    EXPECT_TRUE(data::parse_transforms(texts).ok());
    std::string all;
    for (const std::string& one : texts) all += one.substr(0, one.find("ze(["));
    return all;
  };
  return text(options.transforms) + " | " + text(options.test_transforms) + " | " + std::to_string(options.image_size);
}

TEST(TrainData, TransformsAreThoseOfTorchvisionsReference) {
  EXPECT_EQ(
      completed({}),
      "RandomResizedCrop(224)RandomHorizontalFlipToTensorNormali | Resize(256)CenterCrop(224)ToTensorNormali | 224");
  TrainCommandOptions small;
  small.format = DataFormat::kPack;
  small.small_images = true;
  EXPECT_EQ(completed(small),
            "RandomResizedCrop(32)RandomHorizontalFlipToTensorNormali | Resize(37)CenterCrop(32)ToTensorNormali | 32");
  TrainCommandOptions cifar;
  cifar.format = DataFormat::kCifar10;
  EXPECT_EQ(completed(cifar), "RandomCrop(32, padding=4)RandomHorizontalFlipToTensorNormali | ToTensorNormali | 32");
  cifar.image_size = 64;
  EXPECT_EQ(completed(cifar),
            "RandomCrop(32, padding=4)RandomHorizontalFlipResize(64)ToTensorNormali | Resize(64)ToTensorNormali | 64");
  TrainCommandOptions given;
  given.transforms = {"ToTensor"};
  EXPECT_EQ(completed(given), "ToTensor |  | 224");  // of the evaluation: those of the training
  given.transforms = {};
  given.test_transforms = {"ToTensor"};
  EXPECT_EQ(completed(given), "RandomResizedCrop(224)RandomHorizontalFlipToTensorNormali | ToTensor | 224");
  TrainCommandOptions mnist;
  mnist.format = DataFormat::kMnist;
  EXPECT_EQ(completed(mnist), " |  | 28");
}

TEST(TrainData, AShareTakesEachClassOnceAndNamesOneThatItWouldEmpty) {
  const std::vector<std::string> classes{"ant", "bee", "none"};  // the last has no picture (data.allow_empty)
  const DataParts parts = split_by_class(ten_and_seven(), classes, 0.3, 3);
  EXPECT_EQ(parts.evaluation.size(), 5U);
  std::vector<std::int64_t> all = parts.training;
  all.insert(all.end(), parts.evaluation.begin(), parts.evaluation.end());
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> expected(17);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
  EXPECT_NE(split_by_class(ten_and_seven(), classes, 0.3, 4).evaluation, parts.evaluation);
  test::expect_in(error_of([&] { split_by_class(ten_and_seven(), classes, 0.06, 0); }),
                  {"0.06 of class 'bee' with its 7 pictures leaves the evaluation without this class"});
  test::expect_in(error_of([&] {
                    split_by_class({0, 1, 1}, classes, 0.5, 0);
                  }),
                  {"class 'ant' has 1 picture, which cannot be split: add pictures, take the class out, or give"});
  test::expect_in(error_of([&] {
                    split_by_class({0, 0, 1, 1}, classes, 0.9, 0);
                  }),
                  {"0.9 of class 'ant' with its 2 pictures leaves the training", "a share that rounds to 1 of them"});
}

TEST(TrainData, AWordIsSaidWhereClassesAreFarFromBalanced) {
  std::vector<std::int64_t> labels(19, 0);
  labels.insert(labels.end(), {1, 1});
  TrainCommandOptions options;
  EXPECT_EQ(imbalance_note(options, data_of(labels, {"ant", "bee", "none"})), "");
  labels.push_back(0);
  test::expect_in(imbalance_note(options, data_of(labels, {"ant", "bee", "none"})),
                  {"'ant' has 20 training pictures, and 'bee' has 2", "data.class_balance"});
  options.class_balance = ClassBalance::kSampling;
  EXPECT_EQ(imbalance_note(options, data_of(labels, {"ant", "bee", "none"})), "");
}

// By whole names: layer1 is not the beginning of another layer.
TEST(TrainData, FreezesPartsByName) {
  models::ResNet net = models::resnet18({.num_classes = 2, .small_images = true});
  const auto frozen = freeze(*net, {"conv1", "bn1", "layer1", "fc.bias"});
  EXPECT_EQ(frozen.size(), 3U);
  std::size_t fixed = 0;
  for (const auto& parameter : net->named_parameters()) fixed += parameter.value().requires_grad() ? 0 : 1;
  EXPECT_EQ(fixed, 1U + 2U + 12U + 1U);
  test::expect_in(error_of([&] { freeze(*net, {"layer"}); }),
                  {"model.freeze: ", "found 'layer'; its parts are bn1, conv1, fc, layer1, layer2"});
  test::expect_in(error_of([&] { freeze(*net, {""}); }), {"found ''"});
  test::expect_in(error_of([&] {
                    freeze(*net, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"});
                  }),
                  {"nothing is left to train"});
}

struct NormAndLinear : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return linear(norm(x)); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(2));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
};

// The statistics of a frozen batch norm stay, and it normalises by them.
TEST(TrainData, AFrozenBatchNormStaysAsItIs) {
  const auto net = std::make_shared<NormAndLinear>();
  TrainCommandModel model;
  model.forward = torch::nn::AnyModule(net);
  model.model = net;
  model.frozen = freeze(*net, {"norm"});
  net->train();
  const data::Example batch(torch::randn({8, 2}) + 5, torch::zeros({8}, torch::kLong));
  const torch::Tensor scores = forward(model, {}, batch).scores;
  EXPECT_EQ(net->named_buffers()["norm.running_mean"].abs().sum().item<double>(), 0);
  net->eval();
  EXPECT_TRUE(torch::equal(scores, net->forward(batch.data)));
}

TEST(TrainData, MixesBatchesTheSameForTheSameNumber) {
  const data::Example batch(torch::arange(4 * 3 * 8 * 8).to(torch::kFloat).view({4, 3, 8, 8}),
                            torch::tensor({0, 1, 2, 1}, torch::kLong));
  TrainCommandOptions options;
  EXPECT_TRUE(mixed(batch, options, 3, 0, 0).data.is_same(batch.data));
  options.mixup_alpha = 0.4;
  options.cutmix_alpha = 1;
  int cut = 0;
  for (std::int64_t number = 0; number < 20; ++number) {
    const data::Example made = mixed(batch, options, 3, 1, number);
    EXPECT_TRUE(torch::equal(made.data, mixed(batch, options, 3, 1, number).data));
    EXPECT_TRUE(torch::allclose(made.target.sum(1), torch::ones({4})));
    cut += torch::equal(made.data, made.data.round()) ? 1 : 0;
  }
  EXPECT_GT(cut, 4);
  EXPECT_LT(cut, 16);
}

#ifdef LOCKSTEP_PARITY_SCRIPTS
std::vector<double> numbers_in(std::istream& lines) {
  std::string line;
  std::getline(lines, line);
  std::istringstream words(line);
  return {std::istream_iterator<double>(words), std::istream_iterator<double>()};
}

// Costs a start of Python.
TEST(TrainDataParity, PyTorchSplitsWeighsSamplesAndTransformsTheSame) {
  const test::ScratchFolder folder;
  std::string pixels = "P6 90 70 255\n";
  for (int i = 0; i < 90 * 70 * 3; ++i) pixels += static_cast<char>(i * i / 7);
  folder.write("train/a/1.ppm", pixels);
  std::istringstream lines(test::run_python("train_data.py", {folder.path("train/a/1.ppm")}));

  const std::vector<std::int64_t> taken = split_by_class(ten_and_seven(), {"ant", "bee"}, 0.3, 3).evaluation;
  EXPECT_EQ(numbers_in(lines), std::vector<double>(taken.begin(), taken.end()));

  TrainCommandOptions options;
  options.label_smoothing = 0.1;
  options.class_balance = ClassBalance::kWeights;
  const TrainCommandData samples = data_of(ten_and_seven(), {"ant", "bee"});
  torch::nn::Identity net;
  TrainCommandModel model;
  model.forward = torch::nn::AnyModule(net);
  model.model = net.ptr();
  model.class_weights = class_weights(options, samples, 2);
  const torch::Tensor scores = torch::arange(8.0F).view({4, 2}).sin();
  const torch::Tensor labels = torch::tensor({0, 1, 1, 0}, torch::kLong);
  const torch::Tensor shares = torch::one_hot(labels, 2).to(torch::kFloat) * 0.7 + 0.15;
  EXPECT_NEAR(forward(model, options, {scores, labels}).loss.item<double>(), numbers_in(lines).at(0), 1e-6);
  EXPECT_NEAR(forward(model, options, {scores, shares}).loss.item<double>(), numbers_in(lines).at(0), 1e-6);

  options.class_balance = ClassBalance::kSampling;
  const torch::Tensor order = train_loader_options(options, samples, torch::kCPU).sampler->sequence(5, 0);
  const auto* first = order.const_data_ptr<std::int64_t>();
  EXPECT_EQ(numbers_in(lines), std::vector<double>(first, first + order.numel()));

  options = {};
  options.train = options.test = folder.path("train");
  complete(options);
  const torch::Tensor sample = first_sample("data.test", *open_data(options).test);
  const std::vector<double> expected = numbers_in(lines);
  EXPECT_NEAR(sample.mean().item<double>(), expected.at(0), 1e-5);
  EXPECT_NEAR(sample[0][0][0].item<double>(), expected.at(1), 1e-6);
  EXPECT_NEAR(sample[2][223][100].item<double>(), expected.at(2), 1e-6);
}
#endif

}  // namespace
}  // namespace lockstep::trainer_detail
