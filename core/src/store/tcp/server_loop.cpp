#include "store/tcp/server_loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/host.h"
#include "base/poll.h"
#include "base/random.h"
#include "base/thread.h"
#include "lockstep/base/log.h"
#include "store/tcp/handshake.h"
#include "store/tcp/heartbeat.h"
#include "store/tcp/socket.h"
#include "store/tcp/user_key.h"
#include "store/tcp/wire.h"

namespace lockstep::comm {
namespace {

// Ids that epoll reports for descriptors other than clients'.
constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kStopId = 1;
constexpr std::uint64_t kKeyServerId = 2;
constexpr std::uint64_t kFirstClientId = 3;

constexpr std::size_t kReadChunk = std::size_t{64} << 10;
constexpr auto kWarnEvery = std::chrono::minutes(1);
constexpr std::size_t kReadPerEvent = std::size_t{1} << 20;  // then other clients get their turn

// At most a quarter of the descriptors that the process may have: strangers must leave it some for its own files.
std::size_t most_unproven(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  return std::min<std::size_t>(wanted, std::max<rlim_t>(1, limit.rlim_cur / 4));
}

}  // namespace

Result<std::unique_ptr<TcpStoreServer::Loop, LeakInForks>> TcpStoreServer::Loop::start(TcpStoreServerOptions options) {
  if (!options.listener.valid()) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.listener, listen_at(options.listen_at));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto endpoint, local_endpoint(options.listener.get()));
  LOCKSTEP_RETURN_IF_ERROR(handshake::check_job_key(options.job_key));
  if (std::string host = address_for_others(options.listen_at.host); host != options.listen_at.host) {
    endpoint.host = std::move(host);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Key key, choose_key(options, endpoint));
  LOCKSTEP_ASSIGN_OR_RETURN(key.welcome, random_digits(handshake::kWelcomeBytes / 2));
  std::vector<std::string> places;
  if (options.reached_at) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, look_up(*options.reached_at));
    for (const Endpoint& address : addresses) places.push_back(place_of(address));
  }
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status::from_errno("epoll_create1", errno);
  Fd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return Status::from_errno("eventfd", errno);
  options.listener.keep_from_forks();
  options.max_unproven = most_unproven(options.max_unproven);
  std::unique_ptr<Loop, LeakInForks> loop(
      new Loop(std::move(options), std::move(key), std::move(endpoint), std::move(epoll), std::move(stop)));
  loop->other_places_ = std::move(places);
  LOCKSTEP_ASSIGN_OR_RETURN(loop->thread_, start_thread("the store", [loop = loop.get()] { loop->run(); }));
  return loop;
}

Result<TcpStoreServer::Loop::Key> TcpStoreServer::Loop::choose_key(const TcpStoreServerOptions& options,
                                                                   const Endpoint& endpoint) {
  using handshake::KeySource;
  if (!options.job_key.empty()) return Key{options.job_key, KeySource::kJob};
  if (is_loopback(endpoint)) {
    LOCKSTEP_ASSIGN_OR_RETURN(KeyServer key_server, KeyServer::open());
    std::string bytes = key_server.key();
    return Key{std::move(bytes), KeySource::kStore, std::move(key_server)};
  }
  auto bytes = user_key(Environment::of_process());
  if (bytes.ok()) return Key{std::move(bytes).value(), KeySource::kUser};
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("a store at {} could be reached by anybody in the network, the job has no key, and this user "
                  "has none either ({}): set LOCKSTEP_JOB_KEY to the same secret on every rank (`lockstep run` "
                  "does), or use 127.0.0.1 when all ranks are on this machine",
                  endpoint.text(), bytes.status().message()));
}

TcpStoreServer::Loop::Loop(TcpStoreServerOptions options, Key key, Endpoint endpoint, Fd epoll, Fd stop)
    : options_(std::move(options)),
      key_(std::move(key)),
      endpoint_(std::move(endpoint)),
      epoll_(std::move(epoll)),
      stop_(std::move(stop)),
      service_(fmt::format("the store at {}", endpoint_.text()),
               [this](ClientId id, const wire::Message& answer) {
                 connections_.at(id).is_heartbeat = false;
                 queue(id, wire::encode(answer));
               }),
      next_id_(kFirstClientId) {
  watch(options_.listener.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
  watch(stop_.get(), kStopId, EPOLLIN, EPOLL_CTL_ADD);
  if (key_.server) watch(key_.server->fd(), kKeyServerId, EPOLLIN, EPOLL_CTL_ADD);
}

TcpStoreServer::Loop::~Loop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();
}

void TcpStoreServer::Loop::watch(int fd, ClientId id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

Deadline TcpStoreServer::Loop::next_due() const {
  const Deadline next = earlier(next_heartbeat_, earlier(accept_again_, service_.next_expiry()));
  return unproven_.empty() ? next : earlier(next, connections_.at(*unproven_.begin()).handshake_deadline);
}

void TcpStoreServer::Loop::run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), poll_timeout(next_due()));
    for (int i = 0; i < std::max(count, 0); ++i) {
      const auto& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kStopId) return;
      if (event.data.u64 == kListenerId) {
        accept_all();
      } else if (event.data.u64 == kKeyServerId) {
        serve_keys();
      } else {
        on_event(event.data.u64, event.events);
      }
    }
    service_.expire(Deadline::Clock::now());
    expire_handshakes();
    send_heartbeats();
    flush_queued();
    if (accept_again_.expired()) {
      accept_again_ = Deadline::never();
      set_accepting(EPOLLIN);
    }
  }
}

void TcpStoreServer::Loop::accept_all() {
  // Bounded, so that a flood of connections leaves time for the clients that are connected.
  for (int i = 0; i < 64; ++i) {
    Fd fd(::accept4(options_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    fd.keep_from_forks();
    if (fd.valid()) {
      admit(std::move(fd));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return pause_accepting();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

void TcpStoreServer::Loop::serve_keys() {
  if (!key_.server->serve().ok()) pause_accepting();
}

// Closes an unproven connection, then waits: new connections stay in the kernel's queue.
void TcpStoreServer::Loop::pause_accepting() {
  if (warn_again_.expired()) {
    warn_again_ = Deadline::after(kWarnEvery);
    log::warning(fmt::format("the store at {} has no room for another connection, which has to wait: {}",
                             endpoint_.text(), Status::from_errno("accept", errno).message()));
  }
  make_room();
  accept_again_ = Deadline::after(std::chrono::milliseconds(200));
  set_accepting(0);
}

void TcpStoreServer::Loop::set_accepting(std::uint32_t events) {
  watch(options_.listener.get(), kListenerId, events, EPOLL_CTL_MOD);
  if (key_.server) watch(key_.server->fd(), kKeyServerId, events, EPOLL_CTL_MOD);
}

void TcpStoreServer::Loop::make_room() {
  if (!unproven_.empty()) close(*unproven_.begin());
}

void TcpStoreServer::Loop::admit(Fd fd) {
  const std::string greeting = handshake::to_bytes({key_.source, key_.server ? key_.server->name() : ""});
  if (::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) != std::ssize(greeting)) return;
  if (unproven_.size() >= options_.max_unproven) make_room();
  tune(fd.get());
  const ClientId id = next_id_++;
  watch(fd.get(), id, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
  Connection& connection = connections_[id];
  connection.fd = std::move(fd);
  connection.handshake_deadline = Deadline::after(options_.handshake_timeout);
  unproven_.insert(id);
}

void TcpStoreServer::Loop::on_event(ClientId id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // closed by an earlier event of the same round
  Connection& connection = found->second;
  bool keep = (events & (EPOLLHUP | EPOLLERR)) == 0;
  if (keep && (events & EPOLLOUT) != 0) keep = flush(id, connection);
  if (keep && (events & (EPOLLIN | EPOLLRDHUP)) != 0) {
    if (connection.proven) {
      keep = read_some(connection) && take_frame(id, connection) && !connection.ended;
    } else {
      keep = take_hello(connection) && shake_hands(id, connection);
    }
  }
  if (!keep) close(id);
}

bool TcpStoreServer::Loop::read_some(Connection& connection) {
  std::array<char, kReadChunk> chunk;
  for (std::size_t taken = 0; taken < kReadPerEvent;) {
    const auto count = connection.socket.read_some(chunk);
    if (!count.ok()) {
      connection.ended = count.status().code() == ErrorCode::kUnavailable;
      return connection.ended && !connection.in.empty();
    }
    if (count.value() == 0) return true;
    if (connection.busy) return false;  // one request at a time
    connection.in.append(chunk.data(), count.value());
    taken += count.value();
    if (connection.in.size() > wire::kLengthBytes + wire::kMaxFrameBytes) return false;
  }
  return true;
}

// Encryption begins only when the client's hello is there: until then a connection costs little.
bool TcpStoreServer::Loop::take_hello(Connection& connection) {
  while (connection.fd.valid()) {
    const auto missing = handshake::missing_of_hello(connection.in);
    if (!missing) return false;
    if (*missing == 0) break;
    std::array<char, handshake::kLongestHello> chunk;
    const ssize_t count = ::recv(connection.fd.get(), chunk.data(), *missing, 0);
    if (count == 0) return false;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    connection.in.append(chunk.data(), static_cast<std::size_t>(count));
  }
  if (!connection.fd.valid()) return true;
  const auto here = local_endpoint(connection.fd.get());
  if (!here.ok()) return false;
  std::vector<std::string> places = other_places_;
  places.push_back(place_of(here.value()));
  auto socket =
      SecureSocket::server(std::move(connection.fd), key_.bytes, std::move(places), std::exchange(connection.in, {}));
  if (!socket.ok()) return false;
  connection.socket = std::move(socket).value();
  return true;
}

bool TcpStoreServer::Loop::shake_hands(ClientId id, Connection& connection) {
  if (!connection.socket.valid()) return true;
  const auto done = connection.socket.shake_hands();
  if (!done.ok()) return false;
  if (!done.value()) return true;
  connection.proven = true;
  unproven_.erase(id);
  queue(id, key_.welcome);
  MutexLock lock(mutex_);
  ++num_clients_;
  return true;
}

bool TcpStoreServer::Loop::take_frame(ClientId id, Connection& connection) {
  if (connection.in.size() < wire::kLengthBytes) return true;
  const std::size_t length = wire::frame_length(connection.in);
  if (length > wire::kMaxFrameBytes || connection.in.size() > wire::kLengthBytes + length) return false;
  if (connection.in.size() < wire::kLengthBytes + length) return true;
  auto request = wire::decode(std::string_view(connection.in).substr(wire::kLengthBytes));
  if (!request.ok()) return false;
  if (connection.in.capacity() > kReadChunk) connection.in = std::string();
  connection.in.clear();
  connection.busy = true;
  if (request->kind == static_cast<std::uint8_t>(wire::kWill)) {
    notice_loss_within(connection.number(), std::chrono::milliseconds(request->number));
    watched_.insert(id);
    next_heartbeat_ = earlier(next_heartbeat_, Deadline::after(kHeartbeatEvery));
  }
  service_.handle(id, std::move(request).value());
  return true;
}

void TcpStoreServer::Loop::queue(ClientId id, std::string bytes) {
  Connection& connection = connections_.at(id);
  if (connection.out.empty()) {
    connection.out = std::move(bytes);
  } else {
    connection.out.append(bytes);
  }
  queued_.insert(id);
}

void TcpStoreServer::Loop::flush_queued() {
  while (!queued_.empty()) {  // closing a connection may answer others
    for (const ClientId id : std::exchange(queued_, {})) {
      const auto found = connections_.find(id);
      if (found != connections_.end() && !flush(id, found->second)) close(id);
    }
  }
}

bool TcpStoreServer::Loop::flush(ClientId id, Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const auto rest = std::string_view(connection.out).substr(connection.sent);
    const auto count = connection.socket.write_some(rest);
    if (!count.ok()) return false;
    connection.sent += count.value();
    if (count.value() > 0) continue;
    if (!std::exchange(connection.wants_write, true)) {
      watch(connection.number(), id, EPOLLIN | EPOLLRDHUP | EPOLLOUT, EPOLL_CTL_MOD);
    }
    return true;
  }
  connection.out = std::string();
  connection.sent = 0;
  if (!std::exchange(connection.is_heartbeat, false)) connection.busy = false;
  if (std::exchange(connection.wants_write, false)) {
    watch(connection.number(), id, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
  }
  return true;
}

void TcpStoreServer::Loop::expire_handshakes() {
  while (!unproven_.empty() && connections_.at(*unproven_.begin()).handshake_deadline.expired()) {
    close(*unproven_.begin());
  }
}

void TcpStoreServer::Loop::send_heartbeats() {
  if (!next_heartbeat_.expired()) return;
  for (const ClientId id : watched_) {
    Connection& connection = connections_.at(id);
    if (!connection.out.empty() || !may_send_heartbeat(connection.number())) continue;
    queue(id, std::string(wire::kLengthBytes, '\0'));
    connection.is_heartbeat = true;
  }
  next_heartbeat_ = watched_.empty() ? Deadline::never() : Deadline::after(kHeartbeatEvery);
}

void TcpStoreServer::Loop::close(ClientId id) {
  const auto found = connections_.find(id);
  const bool proven = found->second.proven;
  unproven_.erase(id);
  watched_.erase(id);
  queued_.erase(id);
  connections_.erase(found);
  service_.drop(id);  // may answer other clients
  if (!proven) return;
  MutexLock lock(mutex_);
  if (--num_clients_ == 0) idle_.notify_all();
}

bool TcpStoreServer::Loop::wait_until_idle(Deadline deadline) {
  if (!origin_.is_this_process()) return true;
  MutexLock lock(mutex_);
  while (num_clients_ > 0) {
    if (deadline.is_never()) {
      idle_.wait(mutex_);
    } else if (deadline.expired()) {
      return false;
    } else {
      idle_.wait_until(mutex_, deadline.when());
    }
  }
  return true;
}

std::size_t TcpStoreServer::Loop::num_clients() {
  if (!origin_.is_this_process()) return 0;
  MutexLock lock(mutex_);
  return num_clients_;
}

}  // namespace lockstep::comm
