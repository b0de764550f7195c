// CUDA's GPUs as the device of the tests.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "lockstep/c10d/cuda.h"
#include "lockstep/c10d/process_groups.h"
#include "support/device.h"

namespace lockstep::test {
namespace {

// /dev/nvidia0, /dev/nvidia1, ...: CUDA must not be asked before main().
int gpu_files() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    count += name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])) != 0;
  }
  return count;
}

}  // namespace

void use_test_device() {
  static const bool ready = [] {
    const CudaSupport support = load_cuda();
    if (!support.loaded) throw std::runtime_error("these tests need a GPU: " + support.reason);
    if (!torch::cuda::is_available()) throw std::runtime_error("these tests need a GPU that CUDA can use");
    return true;
  }();
  EXPECT_TRUE(ready);
}

c10::Device test_device(int index) {
  use_test_device();
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index % static_cast<int>(torch::cuda::device_count()))};
}

std::string test_device_name() {
  return "cuda";
}

std::vector<int> test_device_counts() {
  std::vector<int> counts{1};
  for (int count = 2; count <= std::min(kTestDevices, gpu_files()); ++count) counts.push_back(count);
  return counts;
}

std::vector<std::string> test_device_backends() {
  std::vector<std::string> backends{"lockstep"};
  if (is_available("nccl")) backends.emplace_back("cpu:lockstep,cuda:nccl");
  return backends;
}

// NCCL refuses two ranks of one machine on one GPU, so each rank is on a machine of its own, as far as NCCL knows.
void prepare_rank(int rank) {
  ::setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), /*replace=*/1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", /*replace=*/0);
  ::setenv("NCCL_IB_DISABLE", "1", /*replace=*/0);
}

c10::ScalarType test_device_float() {
  return c10::kDouble;
}

bool same_result(const at::Tensor& actual, const at::Tensor& expected) {
  if (!c10::isFloatingType(expected.scalar_type())) return torch::equal(actual, expected);
  const double tolerance = expected.scalar_type() == c10::kDouble ? 1e-7 : 1e-5;
  return torch::allclose(actual, expected, tolerance, tolerance / 10, /*equal_nan=*/true);
}

}  // namespace lockstep::test
