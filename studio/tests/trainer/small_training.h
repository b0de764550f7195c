// A small training for tests: a net with dropout on samples that are sines.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "lockstep/c10d/distributed.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/trainer/trainer.h"

namespace lockstep::test {

inline constexpr std::int64_t kClasses = 3;

class Sines : public data::Dataset {
 public:
  explicit Sines(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override {
    return {torch::sin(torch::arange(1.0F, 7.0F) * static_cast<double>(index + 1)), torch::tensor(index % kClasses)};
  }

 private:
  std::int64_t size_;
};

using Net = torch::nn::Sequential;

inline Net make_net(std::int64_t hidden = 8) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  return Net(torch::nn::Linear(6, hidden), torch::nn::BatchNorm1d(hidden), torch::nn::Dropout(0.2),
             torch::nn::Linear(hidden, kClasses));
}

inline std::map<std::string, torch::Tensor> values_of(const torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& item : model.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : model.named_buffers()) values[item.key()] = item.value().detach().clone();
  return values;
}

inline void expect_same_values(const torch::nn::Module& model, const torch::nn::Module& other,
                               const std::string& where) {
  const auto expected = values_of(other);
  for (const auto& [name, value] : values_of(model)) {
    EXPECT_TRUE(torch::equal(value, expected.at(name))) << where << ": " << name;
  }
}

struct Training {
  explicit Training(TrainerOptions options, std::int64_t samples = 60, std::int64_t hidden = 8)
      : net(make_net(hidden)),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        train(Sines(samples), {.batch_size = 4, .shuffle = true, .seed = 3}),
        test(Sines(31), {.batch_size = 4, .exact = true}),
        trainer(net, optimizer, std::move(options)) {}

  TrainingResult fit() {
    return trainer.fit(train, test, [this](data::Example& batch) { return output_of(batch); });
  }
  StepOutput output_of(const data::Example& batch) {
    const torch::Tensor scores = net->forward(batch.data);
    return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
  }

  Net net;
  torch::optim::SGD optimizer;
  data::DataLoader train;
  data::DataLoader test;
  Trainer trainer;
};

}  // namespace lockstep::test
