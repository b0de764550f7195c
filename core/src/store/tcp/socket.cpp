#include "store/tcp/socket.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "base/host.h"
#include "base/poll.h"

namespace lockstep::comm {
namespace {

Result<AddressList> resolve(const Endpoint& endpoint, int flags) {
  int error = 0;
  AddressList list =
      find_addresses(endpoint.host, std::to_string(endpoint.port).c_str(), SOCK_STREAM, flags | AI_NUMERICSERV, &error);
  if (error == EAI_SYSTEM || error == EAI_MEMORY) {
    return Status::from_errno(fmt::format("cannot look up host '{}'", endpoint.host),
                              error == EAI_MEMORY ? ENOMEM : errno);
  }
  if (error != 0) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("cannot find an address for host '{}': {}", endpoint.host, ::gai_strerror(error)));
  }
  return list;
}

Fd open_socket(const addrinfo& address) {
  return Fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
}

Status listen_error(const Endpoint& endpoint, int error_number) {
  std::string_view hint = "";
  if (error_number == EADDRINUSE) {
    hint =
        ". Another program, or another job, has this port: choose another one (MASTER_PORT), or start the job with "
        "`lockstep run`, which lets the kernel pick";
  } else if (error_number == EADDRNOTAVAIL) {
    hint =
        ". This address is not one of this machine's: rank 0 has to run on the machine that MASTER_ADDR (or the URL) "
        "names. Under mpirun that is the machine of mpirun itself, unless you set MASTER_ADDR to rank 0's";
  } else if (error_number == EACCES) {
    hint = ". Ports below 1024 need privileges: choose a higher one";
  }
  const bool taken = error_number == EADDRINUSE || error_number == EADDRNOTAVAIL;
  const auto status = Status::from_errno(fmt::format("cannot listen at {}", endpoint.text()), error_number);
  return {taken ? ErrorCode::kUnavailable : status.code(), status.message() + std::string(hint)};
}

// Waits until the socket is ready for `events` or has failed.
Status wait_ready(int fd, short events, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, poll_until(fd, events, deadline));
  return ready ? Status() : Status(ErrorCode::kTimeout, "no answer in time");
}

// A connect to a free port of this machine's dynamic range can connect to itself; that is not a server.
bool connected_to_itself(int fd) {
  sockaddr_storage mine{};
  sockaddr_storage theirs{};
  socklen_t mine_bytes = sizeof mine;
  socklen_t their_bytes = sizeof theirs;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &mine_bytes) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &their_bytes) != 0) return false;
  return mine_bytes == their_bytes && std::memcmp(&mine, &theirs, mine_bytes) == 0;
}

Result<Endpoint> in_numbers(const sockaddr* address, socklen_t bytes) {
  // With the interface of a link-local address ("fe80::1%eth0").
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int error = ::getnameinfo(address, bytes, host.data(), host.size(), port.data(), port.size(),
                                  NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return Status(ErrorCode::kInvalidArgument, "expected an IPv4 or IPv6 socket");
  LOCKSTEP_ASSIGN_OR_RETURN(const auto number, parse_port(port.data(), "a socket's port"));
  return Endpoint{host.data(), number};
}

Result<Fd> connect_address(const addrinfo& address, Deadline deadline) {
  Fd fd = open_socket(address);
  if (!fd.valid()) return Status::from_errno("cannot make a socket", errno);
  int error = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    LOCKSTEP_RETURN_IF_ERROR(wait_ready(fd.get(), POLLOUT, deadline));
    socklen_t bytes = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  }
  if (error == 0 && connected_to_itself(fd.get())) error = ECONNREFUSED;
  if (error != 0) {
    const auto place = in_numbers(address.ai_addr, address.ai_addrlen);
    const bool no_loopback = error == ENETUNREACH && place.ok() && is_loopback(place.value());
    return Status(ErrorCode::kUnavailable,
                  fmt::format("{}{}", std::strerror(error),
                              no_loopback ? ": the loopback interface is down (ip link set lo up brings it up)" : ""));
  }
  tune(fd.get());
  return fd;
}

// If two sockets listen at one port at the same moment, Linux sometimes refuses both: each already counts as listening
// while its own port is checked. Both could be bound, so the port is not taken, and each tries again, after a time of
// its own. One of them gets the port, and the other can then not even be bound.
Fd listen_address(const addrinfo& address, int& error) {
  constexpr int kAttempts = 20;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Fd fd = open_socket(address);
    const int on = 1;
    const bool bound = fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
    if (bound && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
    error = errno;
    if (!bound || error != EADDRINUSE) break;
    fd.reset();
    std::this_thread::sleep_for(std::chrono::microseconds(std::random_device()() % 5000));
  }
  return {};
}

// `which`: getsockname or getpeername.
Result<Endpoint> endpoint_of(int fd, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (which(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return Status::from_errno("cannot read a socket's address", errno);
  }
  return in_numbers(reinterpret_cast<const sockaddr*>(&address), bytes);
}

Status closed_by_peer() {
  return {ErrorCode::kUnavailable, "the other side closed the connection"};
}

}  // namespace

Result<Fd> listen_at(const Endpoint& endpoint) {
  // Other machines know an address for this one's name that this one may not know: it listens on all of its own.
  const bool everywhere = address_for_others(endpoint.host) != endpoint.host;
  if (everywhere) {
    int ignored = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(const auto all, resolve({"::", endpoint.port}, AI_PASSIVE));
    if (Fd fd = listen_address(*all, ignored); fd.valid()) return fd;  // else: the port is taken, or there is no IPv6
  }
  const Endpoint place{everywhere ? "0.0.0.0" : endpoint.host, endpoint.port};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, resolve(place, AI_PASSIVE));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Fd fd = listen_address(*address, error);
    if (fd.valid()) return fd;
  }
  return listen_error(endpoint, error);
}

Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses,
                            resolve({address_for_others(endpoint.host), endpoint.port}, AI_ADDRCONFIG));
  Status last(ErrorCode::kUnavailable, "the host has no address");
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    auto fd = connect_address(*address, deadline);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

PortAnswer ask_port(const Endpoint& endpoint, Deadline deadline) {
  const auto fd = connect_to(endpoint, deadline);
  if (fd.ok()) return PortAnswer::kListens;
  const Status& why = fd.status();
  const auto is = [&](int error) {
    return why.code() == ErrorCode::kUnavailable && why.message() == std::strerror(error);
  };
  if (is(ECONNREFUSED)) return PortAnswer::kRefused;
  const bool silent = why.code() == ErrorCode::kTimeout || is(ETIMEDOUT) || is(ENETUNREACH) || is(EHOSTUNREACH);
  if (!silent || is_loopback(endpoint)) return PortAnswer::kListens;
  const auto source = address_towards(endpoint.host);
  return source.ok() && source.value() == endpoint.host ? PortAnswer::kListens : PortAnswer::kNone;
}

Result<std::string> address_towards(const std::string& host) {
  constexpr std::uint16_t kDiscard = 9;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, resolve({address_for_others(host), kDiscard}, AI_ADDRCONFIG));
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const Fd probe(::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe.valid() || ::connect(probe.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const Endpoint local, local_endpoint(probe.get()));
    return local.host;
  }
  return Status(ErrorCode::kUnavailable, fmt::format("no route to '{}'", host));
}

Result<Endpoint> local_endpoint(int fd) {
  auto endpoint = endpoint_of(fd, ::getsockname);
  if (endpoint.ok())
    endpoint->host = endpoint->host.substr(0, endpoint->host.find('%'));  // this machine needs no interface
  return endpoint;
}

Result<Endpoint> remote_endpoint(int fd) {
  return endpoint_of(fd, ::getpeername);
}

bool is_loopback(const Endpoint& numeric) {
  return numeric.host.starts_with("127.") || numeric.host == "::1" || numeric.host.starts_with("::ffff:127.");
}

std::string place_of(const Endpoint& numeric) {
  std::string host = numeric.host.substr(0, numeric.host.find('%'));
  if (host.starts_with("::ffff:")) host.erase(0, std::strlen("::ffff:"));  // IPv4, over an IPv6 socket
  std::string place = fmt::format("{} {}", host, numeric.port);
  if (!is_loopback(numeric)) return place;
  struct stat network {};
  (void)::stat("/proc/self/ns/net", &network);
  const auto boot = boot_id();
  return place + fmt::format(" {} {}", boot.ok() ? boot.value() : "", network.st_ino);
}

Result<std::vector<Endpoint>> look_up(const Endpoint& endpoint) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, resolve(endpoint, 0));
  std::vector<Endpoint> found;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    LOCKSTEP_ASSIGN_OR_RETURN(Endpoint numeric, in_numbers(address->ai_addr, address->ai_addrlen));
    found.push_back(std::move(numeric));
  }
  return found;
}

void tune(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void notice_loss_within(int fd, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  if (limit < std::chrono::seconds(1)) return;
  const auto set = [fd](int option, int value) { ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); };
  const int milliseconds = static_cast<int>(std::min(limit, kLongest).count());
  set(TCP_KEEPIDLE, 1);
  set(TCP_KEEPINTVL, 1);
  set(TCP_KEEPCNT, std::min(127, std::max(1, milliseconds / 1000 - 1)));
  set(TCP_USER_TIMEOUT, milliseconds);  // also for what was sent and not acknowledged
}

Status send_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      LOCKSTEP_RETURN_IF_ERROR(wait_ready(fd, POLLOUT, deadline));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return closed_by_peer();
    } else if (errno != EINTR) {
      return {ErrorCode::kUnavailable, fmt::format("send: {}", std::strerror(errno))};
    }
  }
  return {};
}

Status receive_all(int fd, std::string& bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::recv(fd, bytes.data() + done, bytes.size() - done, 0);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno == ECONNRESET) {
      return closed_by_peer();
    } else if (errno == EAGAIN) {
      LOCKSTEP_RETURN_IF_ERROR(wait_ready(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return {ErrorCode::kUnavailable, fmt::format("receive: {}", std::strerror(errno))};
    }
  }
  return {};
}

}  // namespace lockstep::comm
