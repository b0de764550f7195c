#include "launch/job/metrics_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/host.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kMostConnections = 16;
constexpr std::size_t kMostRequestBytes = 8192;  // of a request
constexpr std::chrono::seconds kTime{5};         // for a request and its answer
constexpr int kBacklog = 16;
constexpr std::chrono::milliseconds kPauseWithoutRoom{200};

Status not_opened(const std::string& address, int port, int error) {
  const std::string what = fmt::format("--metrics-port {}: cannot listen at {}", port, address);
  const Status plain = Status::from_errno(what, error);
  if (error == EADDRINUSE) {
    return Status(ErrorCode::kUnavailable,
                  plain.message() +
                      "; another program listens there, or another launcher on this machine. Give another "
                      "port, or 0, which lets the system choose");
  }
  if (error == EADDRNOTAVAIL) return Status(ErrorCode::kInvalidArgument, plain.message() + " (--metrics-address)");
  return plain;
}

std::string answer_with(std::string_view status, std::string_view type, std::string_view body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     type, body.size(), body);
}

std::string answer_to(std::string_view request, const std::function<std::string()>& text) {
  constexpr std::string_view kPlain = "text/plain; charset=utf-8";
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t space = line.find(' ');
  const std::string_view target = space == std::string_view::npos ? "" : line.substr(space + 1);
  if (line.substr(0, space) != "GET") return answer_with("405 Method Not Allowed", kPlain, "GET /metrics\n");
  const std::string_view path = target.substr(0, target.find_first_of(" ?"));
  if (path != "/metrics") return answer_with("404 Not Found", kPlain, "The numbers are at /metrics.\n");
  return answer_with("200 OK", "text/plain; version=0.0.4; charset=utf-8", text());
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(const std::string& address, int port) {
  int error = 0;
  const AddressList found =
      find_addresses(address, std::to_string(port).c_str(), SOCK_STREAM, AI_PASSIVE | AI_NUMERICSERV, &error);
  if (found == nullptr) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--metrics-address '{}': expected an address of this machine, such as 127.0.0.1 or "
                              "0.0.0.0 (all): {}",
                              address, gai_strerror(error)));
  }
  Fd listener(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!listener.valid()) return Status::from_errno("cannot make a socket for --metrics-port", errno);
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(listener.get(), kBacklog) != 0) {
    return not_opened(address, port, errno);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return not_opened(address, port, errno);
  }
  const bool is_ipv6 = bound.ss_family == AF_INET6;
  const int chosen = ntohs(is_ipv6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                   : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  const std::string host = address.find(':') == std::string::npos ? address : fmt::format("[{}]", address);
  std::string url = fmt::format("http://{}:{}/metrics", host, chosen);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(listener), std::move(url)));
}

void MetricsServer::add_to(std::vector<pollfd>& polled) const {
  if (accept_again_.is_never()) polled.push_back({listener_.get(), POLLIN, 0});
  for (const Connection& connection : connections_) {
    polled.push_back({connection.fd.get(), static_cast<short>(connection.answer.empty() ? POLLIN : POLLOUT), 0});
  }
}

Deadline MetricsServer::next_due() const {
  return connections_.empty() ? accept_again_ : earlier(accept_again_, connections_.front().until);
}

void MetricsServer::accept_new() {
  if (!accept_again_.is_never() && !accept_again_.expired()) return;
  accept_again_ = Deadline::never();
  // Bounded, so that a flood of connections leaves time for the launcher's other work.
  for (std::size_t i = 0; i < kMostConnections; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      // The connection stays in the kernel's queue, so the listener would be readable all the time.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        accept_again_ = Deadline::after(kPauseWithoutRoom);
      return;
    }
    // The oldest one has had the most time.
    if (connections_.size() == kMostConnections) connections_.erase(connections_.begin());
    connections_.push_back({std::move(fd), Deadline::after(kTime), {}, {}, 0});
  }
}

void MetricsServer::serve(const std::function<std::string()>& text) {
  accept_new();
  std::erase_if(connections_, [&](Connection& connection) {
    const bool goes_on = connection.answer.empty() ? read(connection, text) : write(connection);
    return !goes_on || connection.until.expired();
  });
}

bool MetricsServer::read(Connection& connection, const std::function<std::string()>& text) {
  std::array<char, kMostRequestBytes> bytes{};
  const ssize_t got = recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.request.append(bytes.data(), static_cast<std::size_t>(got));
  const bool is_complete =
      connection.request.find("\r\n\r\n") != std::string::npos || connection.request.find("\n\n") != std::string::npos;
  if (!is_complete) return connection.request.size() < kMostRequestBytes;
  connection.answer = answer_to(connection.request, text);
  return write(connection);
}

bool MetricsServer::write(Connection& connection) {
  const std::string_view rest = std::string_view(connection.answer).substr(connection.sent);
  const ssize_t sent = send(connection.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(sent);
  if (connection.sent < connection.answer.size()) return true;
  shutdown(connection.fd.get(), SHUT_WR);
  return false;
}

}  // namespace lockstep::launch
