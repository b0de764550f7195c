// An initialised UCX. Groups with the same settings share one, because each takes a millisecond to make and has its own
// descriptors and list of devices.
#pragma once

#include <memory>

#include "lockstep/base/status.h"
#include "net/network_interface.h"
#include "net/ucx/ucx_library.h"

namespace lockstep::comm {

class UcxContext {
 public:
  // The context of this interface; made if no group has it. Thread-safe.
  static Result<std::shared_ptr<UcxContext>> get(const UcxLibrary& ucx, const NetworkInterface& interface);
  ~UcxContext() { ucx_.ucp_cleanup(handle_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ucp_context_h handle() const { return handle_; }

 private:
  UcxContext(const UcxLibrary& ucx, ucp_context_h handle) : ucx_(ucx), handle_(handle) {}
  static Result<std::shared_ptr<UcxContext>> make(const UcxLibrary& ucx, const NetworkInterface& interface);

  const UcxLibrary& ucx_;
  ucp_context_h handle_;
};

}  // namespace lockstep::comm
