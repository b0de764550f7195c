// What a rank had when a step began, as far as the step's first half may change it.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::elastic_detail {

struct ParameterSamples {
  std::string on_cpu;       // bytes
  torch::Tensor elsewhere;  // of parameters on other devices
};

class Snapshot {
 public:
  // `with_generators`: those of the CPU and of this rank's device.
  void take(const std::vector<torch::nn::Module*>& models, bool with_generators);
  // Whether somebody has changed a parameter since take().
  bool parameters_changed(const std::vector<torch::nn::Module*>& models) const;
  // Puts back buffers and generators. Throws if a buffer was added, removed or has another shape.
  void put_back(const std::vector<torch::nn::Module*>& models) const;

 private:
  struct GeneratorState {
    torch::Device device;
    torch::Tensor state;
  };

  std::vector<torch::Tensor> buffers_;  // copies; their memory is used again
  std::vector<GeneratorState> generators_;
  std::uint64_t parameter_versions_ = 0;
  ParameterSamples parameter_samples_;
};

}  // namespace lockstep::elastic_detail
