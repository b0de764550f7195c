// A network that notes which rows each device is given, for the tests of DataParallel.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <vector>

#include "support/device.h"

namespace lockstep::test {

// What each device was given, in this process.
struct Seen {
  std::mutex mutex;
  std::map<int, std::int64_t> rows;
};
inline Seen& seen() {
  static Seen only;
  return only;
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const std::lock_guard lock(seen().mutex);
      seen().rows[x.device().index()] += x.size(0);
    }
    EXPECT_EQ(x.device(), hidden->weight.device());
    TORCH_CHECK(x.size(0) != fails_with, "the sensor is broken");
    const torch::Tensor features = torch::tanh(hidden(x));
    return out(normalises ? norm(features) : features);
  }
  torch::nn::Linear hidden{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
  bool normalises = false;
  std::int64_t fails_with = -1;
};
TORCH_MODULE(Net);

inline std::vector<torch::Device> first(int count) {
  std::vector<torch::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(test_device(i));
  return devices;
}

inline Net make_net(torch::Device device) {
  torch::manual_seed(11);
  Net net;
  net->to(device);
  return net;
}

inline torch::Tensor inputs_of(std::int64_t rows, int step) {
  auto generator = at::detail::createCPUGenerator(100 + step);
  return torch::randn({rows, 6}, generator);
}

}  // namespace lockstep::test
