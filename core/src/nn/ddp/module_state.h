// What the ranks share of a module's state: all parameters and buffers that DistributedDataParallel does not ignore.
#pragma once

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/replica.h"
#include "nn/device_backend.h"

namespace lockstep::nn_detail {

struct SharedState {
  std::vector<NamedParameter> parameters;  // every name, also of a parameter that has several
  std::vector<NamedParameter> buffers;
};

// The names of `ignored` in the module, and all other names of the same tensors. Throws for one that is not there.
std::set<std::string> names_to_ignore(const torch::nn::Module& module, const std::vector<IgnoredTensor>& ignored);

SharedState shared_state(const torch::nn::Module& module, const std::set<std::string>& ignored);

// The part of it that one rank sends to the others: no buffers, where each rank keeps its own (broadcast_buffers off).
SharedState sent_state(const torch::nn::Module& module, const std::set<std::string>& ignored,
                       const DistributedDataParallelOptions& options);

// The parameters that require a gradient. A parameter with several names is there once, under the first.
std::vector<NamedParameter> trainable(const SharedState& state);

// False: all are frozen, perhaps only for a while (a discriminator in the generator's step).
bool any_trained(const std::vector<torch::Tensor>& parameters);

// The device of those parameters that require a gradient. Throws if there are none, or several devices, or one that
// gets no gradient (check_parameter).
torch::Device trained_device(const std::vector<NamedParameter>& parameters);

// What all ranks must have alike, for check_same_lines: one line for each option, parameter and buffer. Throws for a
// buffer that cannot be sent.
std::string describe(const SharedState& state, const DistributedDataParallelOptions& options);

// The same, one line for the type of each module in it: layers without parameters differ in nothing else. Without
// modules whose tensors are all ignored.
std::string describe_types(const torch::nn::Module& module, const std::set<std::string>& ignored);

// Collective. The state of every rank becomes that of `source`.
void broadcast_state(const SharedState& state, const DeviceBackend& backend, int source);

}  // namespace lockstep::nn_detail
