// What a launcher provides to one attempt of a worker group: a secret, a port for MASTER_PORT and the store.
#pragma once

#include <memory>
#include <string>

#include "base/host.h"
#include "launch/job/worker_environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {

// 32 random bytes as 64 hexadecimal digits.
Result<std::string> make_job_key();

// A port that is reserved for a program that will listen on it later.
struct ReservedPort {
  Fd socket;  // bound with SO_REUSEADDR, not listening: the kernel does not choose the port for a program that asks for
              // any free port, but a listener with SO_REUSEADDR can name it (rank 0 of PyTorch's env://)
  int port = 0;
};

// `host` is a numeric address or a name of this machine; port 0 lets the kernel choose. kUnavailable: it is in use.
Result<ReservedPort> reserve_port(const std::string& host, int port);

// The services of one attempt. A restart makes new ones, so that it sees no key of the attempt before.
struct JobServices {
  ReservedPort master;
  std::unique_ptr<comm::TcpStoreServer> store;  // port chosen by the kernel

  // Fills in the job's addresses; `job.job_key` is the store's secret. The store listens at `address`, a number.
  static Result<JobServices> start(JobSpec& job, const std::string& address = loopback_address());
};

}  // namespace lockstep::launch
