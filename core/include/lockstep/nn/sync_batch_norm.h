// Batch normalisation over the batches of all ranks: mean and variance are those of the ranks' batches together.
//
//   models::ResNet net = models::resnet18();
//   convert_sync_batchnorm(net);                // every BatchNorm1d, 2d and 3d in it, before or after wrapping
//   DistributedDataParallel ddp(net);
//
// or, in a module of your own, a layer that always synchronises:
//
//   SyncBatchNorm norm(SyncBatchNormOptions(64).momentum(std::nullopt));
//
// Values, running statistics and gradients are those of PyTorch's SyncBatchNorm, and of one BatchNorm on the batches of
// all ranks in one. A training pass makes one all-gather of 2C + 2 numbers per layer (C: channels). Its backward pass
// makes one all-gather of 2C numbers, or an all-reduce if the ranks have more than 64 KiB together. Statistics are
// float, or double for a double input; they travel as double.
//
// Every rank must run the same layers in the same order, forward and backward. A rank whose batch is empty
// takes part with zero samples, and its gradients are zeros. Batches may differ in size between ranks. Without a world,
// in a world of one rank and in evaluation a layer works as plain BatchNorm and communicates nothing. In a world of
// several ranks, DataParallel refuses a layer that is in training mode.
//
// Errors: c10::ValueError on every rank when all ranks together have one value per channel; what the collectives throw
// (lockstep/c10d/errors.h), with the layer in front, when a rank does not come or has another number of channels.
// Second derivatives are refused: the backward pass under create_graph throws.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/call_site.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// As torch::nn::BatchNormOptions, and the group.
struct SyncBatchNormOptions {
  // Errors name `where`, the line that makes the options. A layer that is made from a number alone (SyncBatchNorm
  // norm(64)) has no line: a header of LibTorch makes its options.
  SyncBatchNormOptions(std::int64_t num_features,  // NOLINT(google-explicit-constructor)
                       CallSite where = CallSite::here())
      : num_features_(num_features), site(where) {}

  TORCH_ARG(std::int64_t, num_features);
  TORCH_ARG(double, eps) = 1e-5;
  // std::nullopt: running statistics are the plain average of all batches.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  TORCH_ARG(bool, affine) = true;
  // Off: evaluation uses the statistics of its own batch, which are not synchronised.
  TORCH_ARG(bool, track_running_stats) = true;
  // The ranks that normalise together. Null: the world.
  TORCH_ARG(ProcessGroup, process_group) = nullptr;

 public:
  CallSite site;
};

class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, SyncBatchNormOptions> {
 public:
  using NormImplBase::NormImplBase;

  // (N, C, +) to the same shape; N may be 0. Collective and blocking in training mode.
  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every BatchNorm1d, BatchNorm2d and BatchNorm3d in `module` synchronise over `group` (null: the world) from now
// on, and gives each SyncBatchNorm this group. Returns their names ("" is `module` itself).
//
// Layers stay the same objects: names, parameters, buffers, modes, typed members and references to the layers do not
// change. So this works in every module: in Sequential and ModuleList, and for a member `torch::nn::BatchNorm2d norm`
// that forward() calls. (How: the layer's tensors carry a mark, and the first call registers a kernel for
// aten::batch_norm that looks for the mark.) Two things follow:
//   - clone() makes plain layers: convert the clone as well. After moving, loading and saving, layers stay converted.
//   - LibTorch's own check comes first: a converted layer refuses a rank's input with one value per channel. A
//     SyncBatchNorm takes such an input, if the ranks together have more values.
//
// `except` names modules that are left alone, with their submodules. c10::ValueError, which names the module, when
// something cannot be converted; then nothing has been changed:
//   - a BatchNorm that has neither affine parameters nor running statistics: nothing in it can be marked
//   - a module of another type with buffers running_mean and running_var: a batch normalisation of its own, it seems
// Errors of the layers' collectives name the layer and this call's line, in the forward pass and in the backward pass.
// Not collective, but make the same call on all ranks. Not thread-safe.
std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group = nullptr,
                                                const std::vector<std::string>& except = {},
                                                CallSite site = CallSite::here());

template <typename Contained>
std::vector<std::string> convert_sync_batchnorm(const torch::nn::ModuleHolder<Contained>& module,
                                                const ProcessGroup& group = nullptr,
                                                const std::vector<std::string>& except = {},
                                                CallSite site = CallSite::here()) {
  return convert_sync_batchnorm(static_cast<torch::nn::Module&>(*module.ptr()), group, except, site);
}

// The names of the layers in `module` that synchronise, in the order of named_modules().
std::vector<std::string> sync_batchnorm_layers(const torch::nn::Module& module);

}  // namespace lockstep
