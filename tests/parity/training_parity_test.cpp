// The same model, data order and seeds in Python's DistributedDataParallel and in Lockstep's: the same bits.
#include <gtest/gtest.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/datasets/mnist.h"
#include "lockstep/models/mnist_net.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/trainer/trainer.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

constexpr const char* kData = LOCKSTEP_FASHION_MNIST;
constexpr std::uint64_t kSeed = 1234;

std::map<std::string, torch::Tensor> python_weights(int world, int steps, const std::string& backend = "gloo",
                                                    bool fused = false) {
  const test::ScratchFolder folder;
  const std::string path = folder.path() / "weights";
  std::vector<std::string> arguments{std::to_string(world), std::to_string(steps), kData, path, backend};
  if (fused) arguments.emplace_back("fused");
  test::run_python("mnist_training.py", arguments);
  return checkpoint::read_tensor_file(path, checkpoint::Checksum::kIfPresent).tensors;
}

// Both sides run the same kernels, add the gradients of two ranks (the same bits in either order) and halve them
// (exact).
void expect_same_bits(const models::MnistNet& net, const std::map<std::string, torch::Tensor>& expected) {
  const auto parameters = net->named_parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (const auto& entry : parameters) {
    const torch::Tensor& other = expected.at(entry.key());
    EXPECT_TRUE(torch::equal(entry.value(), other))
        << entry.key() << " differs by up to " << (entry.value() - other).abs().max().item<double>();
  }
}

models::MnistNet train(int world, int rank, int steps) {
  torch::set_num_threads(1);
  torch::manual_seed(kSeed);
  models::MnistNet net;
  DistributedDataParallel<models::MnistNet> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  data::DataLoader loader(data::Mnist(kData, /*train=*/true),
                          {.batch_size = 64, .shuffle = true, .seed = kSeed, .rank = rank, .world_size = world});
  torch::manual_seed(kSeed + static_cast<std::uint64_t>(rank));
  for (auto& [images, labels] : loader) {
    if (steps-- == 0) break;
    optimizer.zero_grad();
    torch::nll_loss(ddp->forward(images), labels).backward();
    optimizer.step();
  }
  return net;
}

TEST(MnistNetParity, HasPythonsInitialWeights) {
  torch::manual_seed(kSeed);
  expect_same_bits(models::MnistNet(), python_weights(/*world=*/1, /*steps=*/0));
}

TEST(DistributedDataParallelParity, TwoRanksReachPythonsWeights) {
  constexpr int kSteps = 20;
  const test::SharedScratchFolder folder;
  test::run_processes(2, [&folder](int rank) {
    const ProcessGroupGuard group;
    const models::MnistNet net = train(/*world=*/2, rank, kSteps);
    if (rank == 0) torch::save(net, folder.path("net.pt"));
  });
  models::MnistNet net;
  torch::load(net, folder.path("net.pt"));
  expect_same_bits(net, python_weights(/*world=*/2, kSteps));
}

// The Trainer's loop is that of Python's script.
TEST(TrainerParity, TwoRanksReachPythonsWeights) {
  constexpr int kSteps = 20;
  const test::SharedScratchFolder folder;
  test::run_processes(2, [&folder](int rank) {
    const ProcessGroupGuard group;
    torch::set_num_threads(1);
    torch::manual_seed(kSeed);
    models::MnistNet net;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
    data::DataLoader loader(data::Mnist(kData, /*train=*/true), {.batch_size = 64, .shuffle = true, .seed = kSeed});
    Trainer trainer(net, optimizer, {.epochs = 1, .seed = kSeed, .limit_batches = kSteps});
    trainer.fit(loader, [&](data::Example& batch) { return torch::nll_loss(net->forward(batch.data), batch.target); });
    if (rank == 0) torch::save(net, folder.path("net.pt"));
  });
  models::MnistNet net;
  torch::load(net, folder.path("net.pt"));
  expect_same_bits(net, python_weights(/*world=*/2, kSteps, "gloo", /*fused=*/true));
}

#ifdef LOCKSTEP_PYTHON_PACKAGE
TEST(PythonBackendParity, PythonsDdpReachesTheWeightsThatItReachesOverGloo) {
  constexpr int kSteps = 20;
  const auto ours = python_weights(/*world=*/2, kSteps, "lockstep");
  const auto gloos = python_weights(/*world=*/2, kSteps);
  ASSERT_EQ(ours.size(), gloos.size());
  for (const auto& [name, tensor] : gloos) EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
}

TEST(PythonBackendParity, PythonSeesNamesErrorsAndObjects) {
  EXPECT_EQ(test::run_python("python_backend.py", {}), "all well\n");
}

TEST(ReconfigureParity, PyTorchsContractHoldsOnThisBackend) {
  EXPECT_EQ(test::run_python("reconfigure.py", {}), "all well\n");
}

TEST(PythonBackendParity, PythonsPowerSgdHookReachesTheWeightsThatItReachesOverGloo) {
  EXPECT_EQ(test::run_python("power_sgd.py", {"2", "3", "4"}), "all well\n");
}
#endif

}  // namespace
}  // namespace lockstep
