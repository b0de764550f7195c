#include "launch/job/job_services.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/random.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kKeyBytes = 32;

int bound_port(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Status not_here(const std::string& host, const std::string& why) {
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' (--master-addr or --rdzv-endpoint) is not an address of this machine: {}. A job of one "
                  "machine needs neither option; --nnodes says that there are more",
                  host, why));
}

Status not_bound(const std::string& host, int port, int error) {
  if (error == EADDRNOTAVAIL) return not_here(host, std::strerror(error));
  Status plain = Status::from_errno(fmt::format("cannot reserve {}:{} for MASTER_PORT", host, port), error);
  if (error == EADDRINUSE) {
    return Status(
        ErrorCode::kUnavailable,
        plain.message() + "; another program listens there. Leave --master-port out and a free port is chosen");
  }
  return plain;
}

}  // namespace

Result<std::string> make_job_key() {
  return random_digits(kKeyBytes);
}

Result<ReservedPort> reserve_port(const std::string& host, int port) {
  int error = 0;
  const AddressList addresses = find_addresses(host, std::to_string(port).c_str(), SOCK_STREAM, AI_PASSIVE, &error);
  if (addresses == nullptr) return not_here(host, gai_strerror(error));
  const addrinfo& address = *addresses;
  ReservedPort reserved;
  reserved.socket.reset(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!reserved.socket.valid()) return Status::from_errno("cannot make a socket for MASTER_PORT", errno);
  const int on = 1;
  setsockopt(reserved.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(reserved.socket.get(), address.ai_addr, address.ai_addrlen) != 0) return not_bound(host, port, errno);
  reserved.port = bound_port(reserved.socket.get());
  return reserved;
}

Result<JobServices> JobServices::start(JobSpec& job, const std::string& address) {
  JobServices services;
  LOCKSTEP_ASSIGN_OR_RETURN(services.master, reserve_port(job.master_addr, job.master_port));
  job.master_port = services.master.port;
  comm::TcpStoreServerOptions options;
  options.listen_at = {address, 0};
  options.job_key = job.job_key;
  LOCKSTEP_ASSIGN_OR_RETURN(services.store, comm::TcpStoreServer::start(std::move(options)));
  job.store = services.store->endpoint().text();
  return services;
}

}  // namespace lockstep::launch
