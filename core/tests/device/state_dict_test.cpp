// Files of weights and optimizers, from and to every device; what is in them is tested on the CPU
// (core/tests/checkpoint).
#include "lockstep/checkpoint/state_dict.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/torch_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class DeviceStateDict : public testing::TestWithParam<const char*> {  // the name of the file
 protected:
  DeviceStateDict() { use_test_device(); }

  std::filesystem::path file() const { return folder_.path() / GetParam(); }
  static std::vector<torch::Device> devices() { return {torch::kCPU, test_device(1), test_device(2)}; }

  ScratchFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Files, DeviceStateDict, testing::Values("net.safetensors", "net.pt"));

TEST_P(DeviceStateDict, GoesFromEachDeviceToEachDevice) {
  for (const torch::Device from : devices()) {
    ConvNet saved;
    saved->to(from);
    checkpoint::write_state_dict(file(), checkpoint::state_dict(*saved));
    for (const torch::Device to : devices()) {
      const checkpoint::StateDict read = checkpoint::read_state_dict(file(), to);
      for (const auto& entry : checkpoint::state_dict(*saved))
        expect_on_device(read[entry.key()], to, *entry, c10::str(entry.key(), " from ", from, " to ", to));
      for (const torch::Device where : {test_device(3), torch::Device(torch::kCPU)}) {
        ConvNet loaded;
        loaded->to(where);
        checkpoint::load_state_dict(*loaded, read);
        expect_same(state_of(loaded), state_of(saved), c10::str("from ", from, " by ", to, " to ", where));
        for (const torch::Tensor& parameter : loaded->parameters()) EXPECT_EQ(parameter.device(), where);
      }
    }
  }
}

TEST_P(DeviceStateDict, KeepsValuesOfViews) {
  const torch::Tensor table = torch::arange(12, torch::kFloat).view({3, 4});
  const torch::Tensor there = table.to(test_device(1));
  checkpoint::StateDict state;
  state.insert("table", there);
  state.insert("turned", there.t());
  state.insert("column", there.select(1, 2));
  checkpoint::write_state_dict(file(), state);
  const checkpoint::StateDict read = checkpoint::read_state_dict(file(), test_device(2));
  expect_on_device(read["table"], test_device(2), table, "table");
  expect_on_device(read["turned"], test_device(2), table.t(), "turned");
  expect_on_device(read["column"], test_device(2), table.select(1, 2), "column");
  // Only files of torch.save hold memory that tensors share.
  EXPECT_EQ(read["column"].is_alias_of(read["table"]), file().extension() == ".pt");
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

std::map<std::string, MakeOptimizer> optimizers() {
  namespace optim = torch::optim;
  return {
      {"SGD",
       [](auto parameters) {
         return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(0.1).momentum(0.9));
       }},
      {"Adam",
       [](auto parameters) {
         return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions(0.01).amsgrad(true));
       }},
      {"RMSprop",
       [](auto parameters) {
         return std::make_unique<optim::RMSprop>(std::move(parameters), optim::RMSpropOptions(0.01).centered(true));
       }},
      {"Adagrad",
       [](auto parameters) {
         return std::make_unique<optim::Adagrad>(std::move(parameters), optim::AdagradOptions(0.1));
       }},
  };
}

void step_on(ConvNet& net, torch::Device device, torch::optim::Optimizer& optimizer, int step) {
  torch::manual_seed(100 + step);
  optimizer.zero_grad();
  loss_on(net, device).backward();
  optimizer.step();
}

// The number of a step is on the CPU, as in Python.
void expect_state_on(const torch::optim::Optimizer& optimizer, torch::Device device, const std::string& what) {
  const c10::impl::GenericDict all = checkpoint::state_dict(optimizer).toGenericDict();
  const c10::impl::GenericDict states = all.at("state").toGenericDict();
  EXPECT_FALSE(states.empty()) << what;
  for (const auto& state : states) {
    const c10::impl::GenericDict fields = state.value().toGenericDict();
    for (const auto& field : fields) {
      if (field.key().toStringRef() == "step") continue;
      EXPECT_EQ(field.value().toTensor().device(), device) << what << ' ' << field.key();
    }
  }
}

// Wherever the file's tensors are put, the state comes to the parameters.
TEST(DeviceOptimizerDict, FollowsTheParameters) {
  use_test_device();
  const ScratchFolder folder;
  const auto path = folder.path() / "optimizer.pt";
  const std::vector<std::pair<torch::Device, torch::Device>> ways{
      {test_device(1), test_device(2)}, {test_device(1), torch::kCPU}, {torch::kCPU, test_device(2)}};
  for (const auto& [name, make] : optimizers()) {
    for (const auto& [from, to] : ways) {
      ConvNet net;
      net->to(from);
      const auto optimizer = make(net->parameters());
      for (int step = 0; step < 2; ++step) step_on(net, from, *optimizer, step);
      checkpoint::write_torch_file(path, checkpoint::state_dict(*optimizer));
      const State weights = state_of(net);
      step_on(net, from, *optimizer, 2);
      for (const torch::Device map_location : {torch::Device(torch::kCPU), to, test_device(3)}) {
        const std::string what = c10::str(name, " from ", from, " by ", map_location, " to ", to);
        ConvNet next;
        next->to(to);
        std::size_t at = 0;
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : next->parameters()) parameter.copy_(weights[at++]);
        for (torch::Tensor& buffer : next->buffers()) buffer.copy_(weights[at++]);
        const auto resumed = make(next->parameters());
        checkpoint::load_state_dict(*resumed, checkpoint::read_torch_file(path, map_location));
        expect_state_on(*resumed, to, what);
        const torch::AutoGradMode with_grad(true);
        step_on(next, to, *resumed, 2);
        expect_same(state_of(next), state_of(net), what);
      }
    }
  }
}

// A thread writes what the model was when save() returned, while training goes on.
TEST(DeviceCheckpointManager, SavesBesideTheTraining) {
  use_test_device();
  const ScratchFolder folder;
  checkpoint::CheckpointManager manager(folder.path(), {.asynchronous = true});
  ConvNet net;
  net->to(test_device(1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 3; ++step) {  // later saves use the copies of the first
    step_on(net, test_device(1), optimizer, step);
    const State expected = state_of(net);
    checkpoint::Checkpoint state;
    state.add_model(*net);
    state.add_optimizer(optimizer);
    manager.save(step, state);
    step_on(net, test_device(1), optimizer, 10 + step);
    manager.wait();
    ConvNet saved;
    saved->to(test_device(2));
    torch::optim::Adam resumed(saved->parameters(), torch::optim::AdamOptions(1));
    const auto read = manager.load(step);
    read.restore_model(*saved);
    read.restore_optimizer(resumed);
    expect_same(state_of(saved), expected, c10::str("step ", step));
    expect_state_on(resumed, test_device(2), c10::str("step ", step));
  }
}

}  // namespace
}  // namespace lockstep::test
