// UCX in this process: its functions, and a context for each network interface.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "net/network_interface.h"

namespace lockstep::comm {

// The functions of UCX, loaded when they are first needed.
//
// UCX is loaded at run time, and only by groups that span machines. Loading takes milliseconds and affects the whole
// process: UCX installs handlers for crash signals. A program on one machine does not need UCX and does not load it.
struct UcxLibrary {
#define LOCKSTEP_UCX_FUNCTIONS(X)   \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_address)         \
  X(ucp_worker_release_address)     \
  X(ucp_worker_progress)            \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_signal)              \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_flush_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_request_check_status)       \
  X(ucp_request_free) X(ucs_status_string) X(ucp_get_version) X(ucp_get_version_string)
#define LOCKSTEP_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_MEMBER)
#undef LOCKSTEP_UCX_MEMBER

  std::string text_of(ucs_status_t status) const {
    return ucs_status_string(status);
  }

  // The library of the process, which stays loaded. kUnavailable if libucp is not installed. Thread-safe.
  static Result<const UcxLibrary*> get();
};

// An initialised UCX for one network interface.
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
