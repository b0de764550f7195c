// TrainerOptions::channels_last against the plain layout.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/trainer/trainer.h"
#include "small_training.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class TrainerLayoutMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TrainerLayoutMulti, testing::Values(1, 2, 3));

class Pictures : public data::Dataset {
 public:
  std::int64_t size() const override { return 60; }
  data::Example get(std::int64_t index) const override {
    return {torch::sin(torch::arange(1.0F, 49.0F) * static_cast<double>(index + 1)).view({3, 4, 4}),
            torch::tensor(index % kClasses)};
  }
};

// Kernels and pictures have the layout in every step, and the weights are those of the other layout, but for rounding.
// A checkpoint of the other layout is resumed.
TEST_P(TrainerLayoutMulti, TrainsWithChannelsLast) {
  const SharedScratchFolder folder;
  run_processes(GetParam(), [&](int) {
    const ProcessGroupGuard group;
    const auto train = [&](bool channels_last, std::int64_t epochs, bool resume) {
      torch::manual_seed(1);
      torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::ReLU(), torch::nn::Flatten(),
                                torch::nn::Linear(32, kClasses));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      const TrainerOptions options{.epochs = epochs,
                                   .channels_last = channels_last,
                                   .checkpoint_dir = folder.path(channels_last ? "last" : "plain"),
                                   .resume = resume};
      data::DataLoader loader(Pictures(), {.batch_size = 4, .shuffle = true, .seed = 3});
      Trainer trainer(net, optimizer, options);
      trainer.fit(loader, [&](data::Example& batch) {
        EXPECT_EQ(batch.data.is_contiguous(torch::MemoryFormat::ChannelsLast), channels_last);
        EXPECT_EQ(net->parameters()[0].is_contiguous(torch::MemoryFormat::ChannelsLast), channels_last);
        return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      });
      return net;
    };
    const auto plain = train(false, 2, false);
    const auto expect_near = [&](const torch::nn::Sequential& net, const char* what) {
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(torch::allclose(net->parameters()[i], plain->parameters()[i], 1e-4, 1e-5)) << what << ": " << i;
      }
    };
    expect_near(train(true, 2, false), "from the beginning");
    train(false, 1, false);
    barrier();
    if (get_rank() == 0) {
      std::filesystem::remove_all(folder.path("last"));
      std::filesystem::copy(folder.path("plain"), folder.path("last"), std::filesystem::copy_options::recursive);
    }
    barrier();
    expect_near(train(true, 2, true), "resumed from the other layout");
  });
}

}  // namespace
}  // namespace lockstep::test
