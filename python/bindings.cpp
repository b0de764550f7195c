// The extension module of the Python package: makes the CPU engine from the arguments that torch.distributed gives a
// backend.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/c10d/store_adapter.h"

namespace lockstep {
namespace {

// Backend and Store are the types of LibTorch's Python library, which the module links.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               std::chrono::milliseconds timeout, const std::string& name,
                                               const std::vector<int>& global_ranks, const std::string& profiled_as,
                                               bool enable_reconfigure) {
  ProcessGroupLockstepOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  if (!name.empty()) options.name = name;
  options.global_ranks = global_ranks;
  options.profiled_as = profiled_as;
  options.enable_reconfigure = enable_reconfigure;
  return ProcessGroupLockstep::create(wrap_store(store), options);
}

}  // namespace
}  // namespace lockstep

PYBIND11_MODULE(_engine, module) {
  module.doc() = "Lockstep's CPU engine for torch.distributed";
  // Releases the interpreter's lock, because making a group waits for the other ranks.
  module.def("make_backend", &lockstep::make_backend, pybind11::arg("store"), pybind11::arg("rank"),
             pybind11::arg("world_size"), pybind11::arg("timeout"), pybind11::arg("name") = "",
             pybind11::arg("global_ranks") = std::vector<int>(),
             pybind11::arg("profiled_as") = lockstep::ProcessGroupLockstepOptions::kProfiledAs,
             pybind11::arg("enable_reconfigure") = false, pybind11::call_guard<pybind11::gil_scoped_release>());
}
