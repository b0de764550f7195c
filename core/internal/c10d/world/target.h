// The target of a free function: the group and its backend for the tensor's device.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

enum class Mode { kBlocking, kAsync };

struct Target {
  ProcessGroup group;
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::DeviceType device;
  bool is_world;

  c10d::Backend* operator->() const { return backend.get(); }
  // Returns the group rank of global rank `rank`. Throws if that rank is no member.
  int group_rank(int rank, const char* operation) const;
};

// The same for any group of this process. Errors begin with `operation`.
int group_rank_of(const ProcessGroup& group, int rank, const char* operation);

// All throw when there is no world, when this rank is no member of `group` (null: the world), and when the group has no
// backend for the device.
Target find_target(const ProcessGroup& group, c10::DeviceType device, const char* operation);
Target find_target(const ProcessGroup& group, const at::Tensor& tensor, const char* operation);
// By the first tensor; for an empty list as find_host_target.
Target find_target(const ProcessGroup& group, at::TensorList tensors, const char* operation);
// For operations without tensors of the caller: the CPU's backend, else the group's first one.
Target find_host_target(const ProcessGroup& group, const char* operation);

// Every rank's numbers, int64 [group size, n] on the CPU. Collective over `group`; each rank gives as many.
at::Tensor gather_numbers(const ProcessGroup& group, const std::vector<std::int64_t>& mine, const char* operation);

// Returns what `prepare` returns. `prepare` checks this rank's call. If it throws, the other ranks are told, as by the
// checks of a backend. This needs a group whose only backend is lockstep: otherwise it is not known in which backend
// the others wait. tell_other_ranks() returns true if it has told them, or there are no others.
bool tell_other_ranks(const ProcessGroup& group, const std::exception& error);
template <typename Prepare>
auto prepared(const ProcessGroup& group, const Prepare& prepare) {
  try {
    return prepare();
  } catch (const std::exception& error) {
    tell_other_ranks(group, error);
    throw;
  }
}

// Throws unless `timeout` is positive or kGroupTimeout.
void check_timeout(std::chrono::milliseconds timeout, const char* operation);
// The name of a group is in errors, and in keys of the store.
void check_group_name(const std::string& name, const char* operation);

// Sets the fields that all of c10d's options have.
template <typename Options>
Options make_options(std::chrono::milliseconds timeout, Mode mode, const char* operation) {
  check_timeout(timeout, operation);
  Options options;
  options.timeout = timeout;
  options.asyncOp = mode == Mode::kAsync;
  return options;
}

}  // namespace lockstep
