#include "snapshot.h"

#include <ATen/Context.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstring>
#include <mutex>

#include "lockstep/base/shown_model.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::elastic_detail {
namespace {

std::vector<torch::Tensor> buffers_of(const std::vector<torch::nn::Module*>& models) {
  std::vector<torch::Tensor> all;
  for (const torch::nn::Module* model : models) {
    for (const torch::Tensor& buffer : with_present_tensors(*model).buffers()) {
      if (buffer.defined()) all.push_back(buffer);
    }
  }
  return all;
}

// The sum: a change makes it larger. Inference tensors have none.
std::uint64_t versions_of(const std::vector<torch::nn::Module*>& models) {
  std::uint64_t sum = 0;
  for (const torch::nn::Module* model : models) {
    for (const torch::Tensor& parameter : with_present_tensors(*model).parameters()) {
      if (!parameter.is_inference()) sum += parameter._version();
    }
  }
  return sum;
}

// Of each parameter the first, the middle and the last element in memory: one that writes through data(), as SGD does,
// changes no version.
ParameterSamples samples_of(const std::vector<torch::nn::Module*>& models) {
  ParameterSamples samples;
  std::vector<torch::Tensor> elsewhere;
  for (const torch::nn::Module* model : models) {
    for (const torch::Tensor& parameter : with_present_tensors(*model).parameters()) {
      if (parameter.numel() == 0 || !parameter.is_non_overlapping_and_dense()) continue;
      const std::int64_t half = (parameter.numel() - 1) / 2;
      if (parameter.is_cpu()) {
        const auto* const bytes = static_cast<const char*>(parameter.const_data_ptr());
        const std::size_t size = parameter.element_size();
        for (const std::int64_t index : {std::int64_t{0}, half, parameter.numel() - 1})
          samples.on_cpu.append(bytes + static_cast<std::size_t>(index) * size, size);
      } else {
        elsewhere.push_back(parameter.detach().as_strided({3}, {half}));
      }
    }
  }
  if (!elsewhere.empty()) samples.elsewhere = torch::cat(elsewhere);
  return samples;
}

// Waits for the device. NaNs are equal.
bool same(const ParameterSamples& one, const ParameterSamples& other) {
  if (one.on_cpu != other.on_cpu || one.elsewhere.defined() != other.elsewhere.defined()) return false;
  return !one.elsewhere.defined() || torch::allclose(one.elsewhere, other.elsewhere, 0, 0, /*equal_nan=*/true);
}

bool alike(const torch::Tensor& one, const torch::Tensor& other) {
  return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() && one.device() == other.device();
}

// Most buffers are a few numbers: LibTorch's copy_ would take longer than all the rest.
void copy_values(const torch::Tensor& from, const torch::Tensor& to) {
  if (from.is_cpu() && from.is_contiguous() && to.is_contiguous()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  } else {
    to.copy_(from);
  }
}

std::vector<torch::Device> generator_devices() {
  const torch::Device own = local_device();
  return own.is_cpu() ? std::vector{own} : std::vector{torch::Device(torch::kCPU), own};
}

}  // namespace

void Snapshot::take(const std::vector<torch::nn::Module*>& models, bool with_generators) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> now = buffers_of(models);
  buffers_.resize(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!buffers_[i].defined() || !alike(buffers_[i], now[i])) buffers_[i] = torch::empty_like(now[i]);
    copy_values(now[i], buffers_[i]);
  }
  generators_.clear();
  if (with_generators) {
    for (const torch::Device& device : generator_devices()) {
      generators_.push_back({device, checkpoint::generator_state(device)});
    }
  }
  parameter_versions_ = versions_of(models);
  parameter_samples_ = samples_of(models);
}

bool Snapshot::parameters_changed(const std::vector<torch::nn::Module*>& models) const {
  const torch::NoGradGuard no_grad;
  return versions_of(models) != parameter_versions_ || !same(samples_of(models), parameter_samples_);
}

void Snapshot::put_back(const std::vector<torch::nn::Module*>& models) const {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> now = buffers_of(models);
  TORCH_CHECK_VALUE(now.size() == buffers_.size(), "ElasticTraining: the model had ", buffers_.size(),
                    " buffers when the failed step began, and has ", now.size(),
                    ": a step must not add or remove buffers");
  for (std::size_t i = 0; i < now.size(); ++i) {
    TORCH_CHECK_VALUE(alike(now[i], buffers_[i]), "ElasticTraining: a buffer of the model was ", buffers_[i].toString(),
                      " ", buffers_[i].sizes(), " when the failed step began, and is ", now[i].toString(), " ",
                      now[i].sizes(), ": a step must not change the shapes of buffers");
    copy_values(buffers_[i], now[i]);
  }
  for (const GeneratorState& one : generators_) {
    at::Generator generator = at::globalContext().defaultGenerator(one.device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(one.state);
  }
}

}  // namespace lockstep::elastic_detail
