#include "store/tcp/connect.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <thread>

#include "base/poll.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "store/tcp/handshake.h"
#include "store/tcp/key_server.h"
#include "store/tcp/socket.h"
#include "store/tcp/user_key.h"

namespace lockstep::comm {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(5);
constexpr auto kLongestPause = std::chrono::milliseconds(1000);
constexpr auto kAttemptTimeout = std::chrono::seconds(10);
constexpr auto kShortAttemptTimeout = std::chrono::seconds(3);  // where a signal must not wait for long
constexpr auto kSayTriesEvery = std::chrono::seconds(10);

// The key that the store asks for, as this process knows it; empty: it has none, and the store's verdict will say so.
Result<std::string> find_key(const TcpStoreOptions& options, const handshake::Greeting& greeting, Deadline deadline) {
  if (!options.job_key.empty()) return options.job_key;
  if (greeting.source == handshake::KeySource::kUser) return user_key(Environment::of_process());
  if (greeting.source != handshake::KeySource::kStore) return std::string();
  auto key = fetch_key(greeting.key_socket, deadline);
  if (key.ok()) return key;
  if (key.status().code() == ErrorCode::kPermission) {
    return key.status().with_context(
        fmt::format("the store at {} serves processes of its own user only, as it has no job key; choose another port "
                    "(MASTER_PORT), or give LOCKSTEP_JOB_KEY the same value on every rank",
                    options.server.text()));
  }
  return Status(ErrorCode::kUnavailable, fmt::format("getting the store's key: {}", key.status().message()));
}

}  // namespace

Result<StoreConnection> prove_key(Fd fd, const TcpStoreOptions& options, Deadline deadline) {
  const std::string where = options.server.text();
  fd.keep_from_forks();
  // The mark first: a program that speaks another protocol may never send as much as a whole greeting.
  std::string bytes(handshake::kMark.size(), '\0');
  LOCKSTEP_RETURN_IF_ERROR(receive_all(fd.get(), bytes, deadline).with_context("waiting for the store's greeting"));
  if (bytes == handshake::kMark) {
    std::string rest(handshake::kGreetingBytes - bytes.size(), '\0');
    LOCKSTEP_RETURN_IF_ERROR(receive_all(fd.get(), rest, deadline).with_context("waiting for the store's greeting"));
    bytes += rest;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto greeting, handshake::read_greeting(bytes, where));
  LOCKSTEP_ASSIGN_OR_RETURN(auto key, find_key(options, greeting, deadline));
  const Status refused = handshake::wrong_key(greeting.source, !options.job_key.empty(), where);
  if (key.empty()) return refused;  // a stranger's store may ask for a key that this process does not have
  const auto reached = remote_endpoint(fd.get());
  if (!reached.ok()) return Status(ErrorCode::kUnavailable, "the other side closed the connection");
  LOCKSTEP_ASSIGN_OR_RETURN(auto socket,
                            SecureSocket::client(std::move(fd), std::move(key), place_of(reached.value())));
  const Status proven = socket.shake_hands(deadline);
  if (proven.code() == ErrorCode::kPermission) return refused;
  if (proven.code() == ErrorCode::kMismatch) return handshake::wrong_place(where);
  LOCKSTEP_RETURN_IF_ERROR(proven.with_context(fmt::format("proving the key to the store at {}", where)));
  // A store that is flooded may close the connection until it has seen the end of the handshake.
  std::string welcome(handshake::kWelcomeBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(socket.receive_all(welcome, deadline).with_context("waiting for the store's welcome"));
  return StoreConnection{std::move(socket), std::move(welcome)};
}

Result<StoreConnection> connect_once(const TcpStoreOptions& options, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, connect_to(options.server, deadline));
  return prove_key(std::move(fd), options, deadline);
}

namespace {

// Whether the descriptor became readable.
bool wait_or_interrupt(int interrupt_fd, std::chrono::milliseconds pause) {
  if (interrupt_fd < 0) {
    std::this_thread::sleep_for(pause);
    return false;
  }
  const auto readable = poll_until(interrupt_fd, POLLIN, Deadline::after(pause));
  return readable.ok() && readable.value();
}

bool worth_another_try(const Status& status) {
  return status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kTimeout;
}

Status gave_up(const TcpStoreOptions& options, int attempts, Deadline::Clock::duration spent, const Status& last) {
  return {last.code() == ErrorCode::kTimeout ? ErrorCode::kUnavailable : last.code(),
          fmt::format("cannot reach the store at {}: {} attempt{} in {:.1f} s, last error: {}. Is rank 0 (or the "
                      "launcher) running there, and is the address right and not blocked by a firewall?",
                      options.server.text(), attempts, attempts == 1 ? "" : "s",
                      std::chrono::duration<double>(spent).count(), last.message())};
}

}  // namespace

Result<StoreConnection> connect_patiently(const TcpStoreOptions& options, Deadline deadline, int interrupt_fd) {
  LOCKSTEP_RETURN_IF_ERROR(handshake::check_job_key(options.job_key));
  const auto start = Deadline::Clock::now();
  auto next_report = start + kSayTriesEvery;
  auto pause = kFirstPause;
  for (int attempts = 1;; ++attempts) {
    auto connection = connect_once(
        options, earlier(deadline, Deadline::after(interrupt_fd < 0 ? kAttemptTimeout : kShortAttemptTimeout)));
    if (connection.ok() || !worth_another_try(connection.status()) || !options.tries_again) return connection;
    const auto now = Deadline::Clock::now();
    if (deadline.remaining() <= pause) return gave_up(options, attempts, now - start, connection.status());
    if (now >= next_report) {
      log::warning(fmt::format("still trying to reach the store at {}: {} attempts in {:.0f} s, last error: {}",
                               options.server.text(), attempts, std::chrono::duration<double>(now - start).count(),
                               connection.status().message()));
      next_report = now + kSayTriesEvery;
    }
    if (wait_or_interrupt(interrupt_fd, pause)) {
      return Status(ErrorCode::kAborted,
                    fmt::format("interrupted while reaching the store at {}", options.server.text()));
    }
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace lockstep::comm
