// How ranks find one another and make sure that they are one complete group, before any rank goes on.
//
// Every rank connects to a store, writes its record (member.h) and waits for the records of all other ranks. So each
// rank gets the same result: a complete group, or an error. The error names the rank that joined twice, the world sizes
// that differ, or the ranks that have joined and the ranks that are missing at the deadline.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct RendezvousOptions {
  // How ranks find one another:
  //   - env://: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE; rank 0 serves the store at that address. When
  //     LOCKSTEP_STORE=host:port is set, the launcher serves it there and MASTER_ADDR and MASTER_PORT are not needed.
  //     Under torchrun, whose agent occupies MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), rank 0 serves at the port
  //     after it.
  //   - tcp://host:port: rank 0 serves the store there
  //   - file:///absolute/path: a file that all ranks reach; removed by the last to leave
  //
  // tcp and file accept ?rank=N&world_size=N; else the fields below, else RANK and WORLD_SIZE.
  std::string init_method = "env://";
  // -1: from the URL or the environment. A value that contradicts the URL (or, with env://, the environment) is an
  // error.
  int rank = -1;
  int world_size = -1;
  // With env://: used instead of MASTER_ADDR and MASTER_PORT (when a scheduler says where rank 0 runs).
  std::string master_addr = {};
  int master_port = -1;
  // For reaching the store and waiting for all ranks together. A negative value waits forever.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Proves to the store that this process belongs to the job. Empty: LOCKSTEP_JOB_KEY. With neither, a store
  // that rank 0 serves is open only to processes of rank 0's user. On a loopback address the kernel tells which user a
  // process runs as; on other addresses a process needs the same key file in the home directory
  // (TcpStoreServerOptions::job_key).
  std::string job_key = {};
  // Only ranks with the same name form a group. Each attempt of a job (LOCKSTEP_RESTART_COUNT or
  // TORCHELASTIC_RESTART_COUNT) forms a group of its own, and so does each further rendezvous with the same name on the
  // same store.
  std::string group_name = "default";
  Environment environment = Environment::of_process();
};

class RendezvousSession;

// The result of a rendezvous. Movable, cheap to copy; the copies share one session.
struct Rendezvous {
  std::shared_ptr<Store> store;  // shows only the keys of this group, attempt and rendezvous
  int rank = 0;
  int world_size = 1;
  std::vector<Member> members;                 // the records of all ranks, by rank
  std::shared_ptr<RendezvousSession> session;  // owns the connection and, on the rank that serves the store, the server

  // Leaves the group: tells the store, and closes this rank's connection if rendezvous made it. Later use of a TCP
  // `store` fails with kUnavailable; a file lives until `store` is destroyed. The rank that serves the store goes on
  // serving until the other ranks have left or died, for at most `wait`. Call it once before the last copy is
  // destroyed. Without this call the server stops at once, and the same rank cannot join a second time on a store that
  // lives on. kTimeout, which may be ignored: other ranks were still connected after `wait`.
  Status release(std::chrono::milliseconds wait = std::chrono::seconds(10));

  // Whether the store notices that ranks end. It does if the group has several machines and rendezvous() has connected
  // its ranks to a store over TCP. Thread-safe; does not block.
  bool sees_ends() const;
  // Returns the ranks that have ended or left, and the ranks that the store has not heard from for 60 s, for example
  // because their machine is lost. Empty if sees_ends() is false. A rank that is on the list stays there. Thread-safe;
  // blocks for one request.
  Result<std::vector<int>> gone() const;
};

// Blocks until all ranks have joined. A world of 1 needs no network, file or address.
//
// Errors: kInvalidArgument (missing variables, contradictory or impossible arguments), kMismatch (a rank joined
// twice, world sizes that differ, a rank outside its world), kTimeout (ranks missing), kUnavailable (store not reached,
// port taken), kPermission (wrong job key), kCorrupt (a foreign program at the address, a damaged file). After an error
// nothing is left open; the rank that serves the store stays for the rest of its timeout (1 s at least, 5 s at most),
// until the others have read the error too.
Result<Rendezvous> rendezvous(const RendezvousOptions& options);

// A rendezvous on a store that the caller provides; init_method, master_* and job_key are not used.
Result<Rendezvous> rendezvous(const RendezvousOptions& options, std::shared_ptr<Store> store);

}  // namespace lockstep::comm
