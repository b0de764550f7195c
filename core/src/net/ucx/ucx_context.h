// An initialised UCX for one network interface.
#pragma once

#include <memory>

#include "lockstep/base/status.h"
#include "net/network_interface.h"
#include "net/ucx/ucx_library.h"

namespace lockstep::comm {

class UcxContext {
 public:
  static Result<std::unique_ptr<UcxContext>> make(const UcxLibrary& ucx, const NetworkInterface& interface);
  ~UcxContext() { ucx_.ucp_cleanup(handle_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ucp_context_h handle() const { return handle_; }

 private:
  UcxContext(const UcxLibrary& ucx, ucp_context_h handle) : ucx_(ucx), handle_(handle) {}

  const UcxLibrary& ucx_;
  ucp_context_h handle_;
};

}  // namespace lockstep::comm
