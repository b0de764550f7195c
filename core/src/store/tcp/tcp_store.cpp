#include "lockstep/store/tcp_store.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/base/mutex.h"
#include "store/keys/key_value_table.h"
#include "store/tcp/connect.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/socket.h"
#include "store/tcp/wire.h"

namespace lockstep::comm {
namespace {

using wire::Message;

// How much later than its deadline the server may answer a waiting request.
constexpr auto kAnswerGrace = std::chrono::seconds(5);
// For a request to a server that has not answered the one before.
constexpr auto kPatienceOnceSilent = std::chrono::milliseconds(200);
// Between attempts to connect to an address that accepts connections and closes them.
constexpr auto kPauseInFlood = std::chrono::milliseconds(1);
constexpr auto kLongestPauseInFlood = std::chrono::milliseconds(100);

Deadline later(Deadline deadline, std::chrono::milliseconds by) {
  return deadline.is_never() ? deadline : Deadline::after(deadline.remaining() + by);
}

Status malformed_answer() {
  return {ErrorCode::kCorrupt, "the store's answer lacks its value"};
}

}  // namespace

// The connections of one client: those in a call, and idle ones for the next call.
class TcpStore::Connections {
 public:
  Connections(TcpStoreOptions options, StoreConnection first)
      : options_(std::move(options)), numeric_(options_), store_(std::move(first.store)) {
    if (auto local = local_endpoint(first.socket.fd()); local.ok()) local_address_ = local->host;
    // Looking up a name has no deadline, so it is done once.
    if (auto server = remote_endpoint(first.socket.fd()); server.ok()) numeric_.server = server.value();
    idle_.push_back(std::move(first.socket));
  }

  const std::string& local_address() const { return local_address_; }
  // How long a request without a deadline of its own may take.
  Deadline patience() const {
    const auto limit = options_.request_timeout;
    return Deadline::after(silent_ ? std::min<std::chrono::milliseconds>(limit, kPatienceOnceSilent) : limit);
  }

  // Sends a request and waits for its answer; an error in the answer comes back as status. `waits_until`: how long the
  // server may wait before it answers, for a request that waits.
  Result<Message> call(Message request, Deadline deadline, std::optional<Deadline> waits_until = {});
  void close();

 private:
  Result<SecureSocket> take(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Result<StoreConnection> connect(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Result<Message> exchange(SecureSocket& socket, const std::string& frame, Deadline deadline) const;
  Status check_open() LOCKSTEP_EXCLUDES(mutex_);
  Status lost(const Status& why) const;
  Status closes_all(int attempts, Deadline::Clock::duration spent) const;
  Status left() const;

  const Origin origin_;
  const TcpStoreOptions options_;
  TcpStoreOptions
      numeric_;  // the same with the server's address as numbers; constant after the constructor, as is the next
  const std::string store_;  // which store the keys are in
  std::string local_address_;
  std::atomic<bool> silent_{false};  // the last request was not answered in time
  Mutex mutex_;
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<SecureSocket> idle_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<int> busy_ LOCKSTEP_GUARDED_BY(mutex_);  // owned by the calls under way
};

Status TcpStore::Connections::lost(const Status& why) const {
  if (why.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, fmt::format("the store at {} did not answer in time; it, or the network to it, has "
                                             "stopped",
                                             options_.server.text())};
  }
  if (why.code() != ErrorCode::kUnavailable) return why;
  return {ErrorCode::kUnavailable, fmt::format("lost the store at {}: {}. The process that serves it (rank 0, or the "
                                               "launcher) has ended; look for its error first",
                                               options_.server.text(), why.message())};
}

Status TcpStore::Connections::closes_all(int attempts, Deadline::Clock::duration spent) const {
  return {ErrorCode::kUnavailable,
          fmt::format("lost the store at {}: the address accepts connections and closes them before they have proven "
                      "the key, {} in {:.1f} s. Either the store is flooded with connections, or the process that "
                      "served it (rank 0, or the launcher) has ended and another program (a proxy, a tunnel) accepts "
                      "in its place; look for the error of that process first",
                      options_.server.text(), attempts, std::chrono::duration<double>(spent).count())};
}

Status TcpStore::Connections::left() const {
  return {ErrorCode::kUnavailable, fmt::format("this process has left the store at {}", options_.server.text())};
}

Status TcpStore::Connections::check_open() {
  MutexLock lock(mutex_);
  return closed_ ? left() : Status();
}

Result<SecureSocket> TcpStore::Connections::take(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (!closed_ && !idle_.empty()) {
      SecureSocket socket = std::move(idle_.back());
      idle_.pop_back();
      busy_.insert(socket.fd());
      return socket;
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(check_open());
  LOCKSTEP_ASSIGN_OR_RETURN(StoreConnection made, connect(deadline));
  if (made.store != store_)
    return lost(Status(ErrorCode::kUnavailable, "another store, without its keys, listens there now"));
  MutexLock lock(mutex_);
  if (closed_) return left();
  busy_.insert(made.socket.fd());
  return std::move(made.socket);
}

// During a flood of strangers the server closes many connections before it knows whose they are. The machine of a
// server that is gone refuses connections, unless another program accepts them in the server's place.
Result<StoreConnection> TcpStore::Connections::connect(Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const Deadline end_of_tries = earlier(deadline, Deadline::after(options_.request_timeout));
  auto pause = kPauseInFlood;
  for (int attempts = 1;; ++attempts) {
    auto fd = connect_to(numeric_.server, deadline);
    if (!fd.ok()) return lost(fd.status());
    auto made = prove_key(std::move(fd).value(), numeric_, deadline);
    if (made.ok()) return made;
    if (made.status().code() != ErrorCode::kUnavailable) return lost(made.status());
    if (end_of_tries.remaining() <= pause) return closes_all(attempts, Deadline::Clock::now() - start);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPauseInFlood);
    LOCKSTEP_RETURN_IF_ERROR(check_open());
  }
}

Result<Message> TcpStore::Connections::exchange(SecureSocket& socket, const std::string& frame,
                                                Deadline deadline) const {
  LOCKSTEP_RETURN_IF_ERROR(socket.send_all(frame, deadline));
  std::string length(wire::kLengthBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(socket.receive_all(length, deadline));
  const std::size_t bytes = wire::frame_length(length);
  if (bytes > wire::kMaxFrameBytes) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("the store at {} announced an answer of {} bytes, at most {} are allowed",
                              options_.server.text(), bytes, wire::kMaxFrameBytes));
  }
  std::string body(bytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(socket.receive_all(body, deadline));
  return wire::decode(body);
}

Result<Message> TcpStore::Connections::call(Message request, Deadline deadline, std::optional<Deadline> waits_until) {
  if (!origin_.is_this_process()) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("this process is a fork of one that is connected to the store at "
                              "{}; it needs a connection of its own",
                              options_.server.text()));
  }
  if (wire::body_bytes(request.parts) > wire::kMaxFrameBytes) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("a store request has at most {} bytes, found {}",
                                                           wire::kMaxFrameBytes, wire::body_bytes(request.parts)));
  }
  auto taken = take(deadline);
  if (!taken.ok()) {
    silent_ = taken.status().code() == ErrorCode::kTimeout;
    LOCKSTEP_RETURN_IF_ERROR(check_open());
    return taken.status();
  }
  SecureSocket socket = std::move(taken).value();
  if (waits_until.has_value()) request.number = wire::wait_until(*waits_until);  // making the connection took time
  auto answer = exchange(socket, wire::encode(request), deadline);
  silent_ = answer.status().code() == ErrorCode::kTimeout;
  {
    MutexLock lock(mutex_);
    busy_.erase(socket.fd());
    if (answer.ok() && !closed_)
      idle_.push_back(std::move(socket));  // after an error an old answer may be in the connection
  }
  if (!answer.ok()) {
    LOCKSTEP_RETURN_IF_ERROR(check_open());
    return lost(answer.status());
  }
  LOCKSTEP_RETURN_IF_ERROR(wire::status_of(answer.value()));
  return answer;
}

void TcpStore::Connections::close() {
  if (!origin_.is_this_process()) return;
  MutexLock lock(mutex_);
  closed_ = true;
  idle_.clear();
  for (const int fd : busy_) ::shutdown(fd, SHUT_RDWR);  // wakes the call, which owns and closes it
}

TcpStore::TcpStore(std::unique_ptr<Connections, LeakInForks> connections) : connections_(std::move(connections)) {}
TcpStore::~TcpStore() = default;

Result<std::shared_ptr<TcpStore>> TcpStore::connect(TcpStoreOptions options, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(StoreConnection made, connect_patiently(options, deadline));
  std::unique_ptr<Connections, LeakInForks> connections(new Connections(std::move(options), std::move(made)));
  return std::shared_ptr<TcpStore>(new TcpStore(std::move(connections)));
}

void TcpStore::close() {
  connections_->close();
}

Result<StoreAnswer> TcpStore::answer(StoreCall call) {
  if (call.op == StoreCall::Op::kSet) return set_all(std::move(call));
  if (call.op == StoreCall::Op::kGet) return get_all(std::move(call));
  const Deadline deadline =
      call.waits() ? later(call.deadline, kAnswerGrace) : earlier(connections_->patience(), call.deadline);
  const std::size_t values = call.op == StoreCall::Op::kCompareSet ? 1 : 0;
  const auto waits_until = call.waits() ? std::optional(call.deadline) : std::nullopt;
  LOCKSTEP_ASSIGN_OR_RETURN(Message answer,
                            connections_->call(wire::request_of(std::move(call)), deadline, waits_until));
  if (answer.parts.size() != values) return malformed_answer();
  return StoreAnswer{answer.number, std::move(answer.parts)};
}

Result<StoreAnswer> TcpStore::set_all(StoreCall call) {
  std::size_t next = 0;
  while (next < call.keys.size()) {
    // As many as fit into one frame; one always fits.
    StoreCall part{.op = StoreCall::Op::kSet};
    std::size_t bytes = wire::body_bytes({});
    for (; next < call.keys.size(); ++next) {
      bytes += 8 + call.keys[next].size() + call.values[next].size();
      if (!part.keys.empty() && bytes > wire::kMaxFrameBytes) break;
      part.keys.push_back(std::move(call.keys[next]));
      part.values.push_back(std::move(call.values[next]));
    }
    const Deadline deadline = earlier(connections_->patience(), call.deadline);
    LOCKSTEP_RETURN_IF_ERROR(connections_->call(wire::request_of(std::move(part)), deadline).status());
  }
  return StoreAnswer();
}

Result<StoreAnswer> TcpStore::get_all(StoreCall call) {
  StoreAnswer all;
  while (!call.keys.empty()) {
    // The server answers as many as fit into one frame.
    LOCKSTEP_ASSIGN_OR_RETURN(
        Message answer, connections_->call(wire::request_of(call), later(call.deadline, kAnswerGrace), call.deadline));
    if (answer.parts.empty() || answer.parts.size() > call.keys.size()) return malformed_answer();
    call.keys.erase(call.keys.begin(), call.keys.begin() + std::ssize(answer.parts));
    std::move(answer.parts.begin(), answer.parts.end(), std::back_inserter(all.values));
  }
  return all;
}

Result<std::int64_t> TcpStore::push(std::string_view list, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(list, value.size()));
  Message request{static_cast<std::uint8_t>(wire::kPush), 0, {std::string(list), std::string(value)}};
  LOCKSTEP_ASSIGN_OR_RETURN(const Message answer, connections_->call(std::move(request), connections_->patience()));
  return answer.number;
}

Result<std::int64_t> TcpStore::delete_prefix(std::string_view prefix) {
  Message request{static_cast<std::uint8_t>(wire::kDeletePrefix), 0, {std::string(prefix)}};
  LOCKSTEP_ASSIGN_OR_RETURN(const Message answer, connections_->call(std::move(request), connections_->patience()));
  return answer.number;
}

std::string TcpStore::local_address() const {
  return connections_->local_address();
}

}  // namespace lockstep::comm
