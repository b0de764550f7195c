// What a launcher provides to one run of a worker group: a secret, a port for MASTER_PORT and the store.
#pragma once

#include <memory>
#include <string>

#include "launch/worker_environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {

// 32 fresh random bytes from the kernel as 64 hexadecimal digits.
Result<std::string> make_job_key();

// A port that is kept for a program which will listen on it later.
struct ReservedPort {
  Fd socket;  // bound, with SO_REUSEADDR, not listening: the kernel gives the port to nobody who asks for any free one,
              // while a listener that sets SO_REUSEADDR and names the port (rank 0 of PyTorch's env://) may have it
  int port = 0;
};

// `host` is a numeric address or a name of this machine; port 0 lets the kernel choose. kUnavailable when it is taken.
Result<ReservedPort> reserve_port(const std::string& host, int port);

// Services of one generation of workers: a restart makes new ones, so that nothing of the dead generation is seen.
struct JobServices {
  ReservedPort master;
  std::unique_ptr<comm::TcpStoreServer> store;  // on 127.0.0.1, at a port that the kernel chose

  // Fills in the job's addresses; `job.job_key` is the store's secret.
  static Result<JobServices> start(JobFacts& job);
};

}  // namespace lockstep::launch
