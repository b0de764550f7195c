// What a backend can do, where c10d::Backend has no method that says so.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace lockstep {

// Implemented by the backends that init_process_group makes. By default each method returns the answer for the CPU
// engine; a backend overrides it.
class BackendCapabilities {
 public:
  virtual ~BackendCapabilities() = default;

  // all_reduce takes ReduceOp::AVG.
  virtual bool has_avg() const { return true; }
  // A receive may name any rank as its source.
  virtual bool receives_from_any() const { return true; }
  // A message may be a tensor with holes or in another order of elements.
  virtual bool takes_strided_messages() const { return true; }
  virtual bool has_monitored_barrier() const { return true; }
  // Collectives of device tensors are work of the device's streams: a call returns at once, and wait() makes the
  // current stream wait, not the program.
  virtual bool orders_by_stream() const { return false; }
};

// The capabilities of another library's backend. Lockstep never asks such a backend for AVG; the backend itself refuses
// everything else that it cannot do.
class ForeignCapabilities final : public BackendCapabilities {
 public:
  bool has_avg() const override { return false; }
};

inline const BackendCapabilities& capabilities_of(const c10d::Backend& backend) {
  static const ForeignCapabilities foreign;
  const auto* const own = dynamic_cast<const BackendCapabilities*>(&backend);
  return own != nullptr ? *own : foreign;
}

}  // namespace lockstep
