// What making a DeviceMesh needs: checks of its arguments, the check that all ranks ask for the same, its groups.
#pragma once

#include <ATen/ATen.h>

#include <exception>
#include <string>
#include <vector>

#include "lockstep/c10d/device_mesh.h"

namespace lockstep::device_mesh {

// Throws ArgumentError (kInvalidArgument).
[[noreturn]] void reject(const std::string& text);

// There must be a name for each dimension, or none. Names must differ, and include those of group_options.
void check_names(const std::vector<std::string>& names, std::int64_t dims, const DeviceMeshOptions& options);

// Checks the ranks of a mesh as the caller gives them. Returns them as a contiguous int64 tensor on the CPU.
at::Tensor check_ranks(const at::Tensor& mesh, int world_size);

// The elements in row-major order.
std::vector<int> to_ranks(const at::Tensor& ranks);

// All that must be equal on all ranks, for messages.
std::string text_of(c10::DeviceType device, const at::Tensor& ranks, const std::vector<std::string>& names,
                    const DeviceMeshOptions& options);

// Collective over the world. Throws BackendError (kMismatch) on every rank unless all have the same text.
void check_agreement(const std::string& mine);

// Instead of check_agreement(), on a rank that has no mesh because of `error`: the others get an error there, whatever
// the backends of the world are.
void disagree(const std::exception& error);
template <typename Prepare>
auto prepare_mesh(const Prepare& prepare) {
  try {
    return prepare();
  } catch (const std::exception& error) {
    disagree(error);
    throw;
  }
}

// The group of the ranks in `line`, in this order. `options` null: the world itself, if these are its ranks; otherwise
// a group with the world's backends. Collective over these ranks.
ProcessGroup make_dim_group(const at::Tensor& line, const std::string& name, c10::DeviceType device,
                            const GroupOptions* options);

}  // namespace lockstep::device_mesh
