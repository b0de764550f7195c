// The device that the tests of core/tests/device run on. The program device_tests has a device without a GPU
// (support/test_device.h), so these tests run on every machine; gpu_tests has CUDA's GPUs (support/gpu_device).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace lockstep::test {

constexpr int kTestDevices = 4;

// To be called first in a test, before other threads use LibTorch; further calls do nothing. From then on the device
// is LibTorch's accelerator, and page-locked memory is the device's.
void use_test_device();

// For index 0 to kTestDevices - 1. Where there are fewer GPUs, several of these are one GPU.
c10::Device test_device(int index);

// "test" or "cuda".
std::string test_device_name();

// 1, 2, ... as many as there are different devices, at most kTestDevices.
std::vector<int> test_device_counts();

// Backends of groups that serve the device. What needs a group runs once with each.
std::vector<std::string> test_device_backends();

// What a rank needs in its environment before it joins its first group.
void prepare_rank(int rank);

// The type of networks whose results on the device are compared with those of the CPU. The test device computes the
// same bits. A GPU adds in another order, which in double leaves the differences far below those of mistakes.
c10::ScalarType test_device_float();

// Whether a result of the device is that of the CPU, as far as the device promises.
bool same_result(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace lockstep::test
