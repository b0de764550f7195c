#include "lockstep/store/tcp_store.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "lockstep/base/mutex.h"
#include "store/keys/key_value_table.h"
#include "store/tcp/connect.h"
#include "store/tcp/socket.h"
#include "store/tcp/wire.h"

namespace lockstep::comm {
namespace {

using wire::Message;
using wire::Op;

// How much later than its deadline the server may answer a waiting request.
constexpr auto kAnswerGrace = std::chrono::seconds(5);
// For a request to a server that has not answered the one before.
constexpr auto kPatienceOnceSilent = std::chrono::milliseconds(200);

Deadline later(Deadline deadline, std::chrono::milliseconds by) {
  return deadline.is_never() ? deadline : Deadline::after(deadline.remaining() + by);
}

}  // namespace

// The connections of one client: those in a call, and idle ones for the next call.
class TcpStore::Connections {
 public:
  Connections(TcpStoreOptions options, Fd first) : options_(std::move(options)), numeric_(options_) {
    if (auto local = local_endpoint(first.get()); local.ok()) local_address_ = local->host;
    // Looking up a name has no deadline, so it is done once.
    if (auto server = remote_endpoint(first.get()); server.ok()) numeric_.server = server.value();
    idle_.push_back(std::move(first));
  }

  const std::string& local_address() const { return local_address_; }
  // How long a request without a deadline of its own may take.
  Deadline patience() const {
    const auto limit = options_.request_timeout;
    return Deadline::after(silent_ ? std::min<std::chrono::milliseconds>(limit, kPatienceOnceSilent) : limit);
  }

  // Sends a request and waits for its answer; an error in the answer comes back as status.
  Result<Message> call(const Message& request, Deadline deadline);
  Result<Message> call(const Message& request) { return call(request, patience()); }

  // The same for kGet and kWait, which wait at the server.
  Result<Message> call_waiting(Op op, std::span<const std::string> keys, Deadline deadline);
  void close();

 private:
  Result<Fd> take(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  Result<Message> exchange(int fd, const std::string& frame, Deadline deadline) const;
  Status check_open() LOCKSTEP_EXCLUDES(mutex_);
  Status lost(const Status& why) const;
  Status left() const;

  const Origin origin_;
  const TcpStoreOptions options_;
  TcpStoreOptions
      numeric_;  // the same with the server's address as numbers; constant after the constructor, as is the next
  std::string local_address_;
  std::atomic<bool> silent_{false};  // the last request was not answered in time
  Mutex mutex_;
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<Fd> idle_ LOCKSTEP_GUARDED_BY(mutex_);
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

Status TcpStore::Connections::left() const {
  return {ErrorCode::kUnavailable, fmt::format("this process has left the store at {}", options_.server.text())};
}

Status TcpStore::Connections::check_open() {
  MutexLock lock(mutex_);
  return closed_ ? left() : Status();
}

Result<Fd> TcpStore::Connections::take(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (!closed_ && !idle_.empty()) {
      Fd fd = std::move(idle_.back());
      idle_.pop_back();
      busy_.insert(fd.get());
      return fd;
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(check_open());
  auto made = connect_once(numeric_, deadline);
  // During a flood of strangers the server may have closed this connection. A server that is gone refuses every time.
  for (int more = 2; more > 0 && made.status().code() == ErrorCode::kUnavailable; --more) {
    made = connect_once(numeric_, deadline);
  }
  LOCKSTEP_RETURN_IF_ERROR(made.status());
  Fd fd = std::move(made).value();
  MutexLock lock(mutex_);
  if (closed_) return left();
  busy_.insert(fd.get());
  return fd;
}

Result<Message> TcpStore::Connections::exchange(int fd, const std::string& frame, Deadline deadline) const {
  LOCKSTEP_RETURN_IF_ERROR(send_all(fd, frame, deadline));
  std::string length(wire::kLengthBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(receive_all(fd, length, deadline));
  const std::size_t bytes = wire::frame_length(length);
  if (bytes > wire::kMaxFrameBytes) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("the store at {} announced an answer of {} bytes, at most {} are allowed",
                              options_.server.text(), bytes, wire::kMaxFrameBytes));
  }
  std::string body(bytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(receive_all(fd, body, deadline));
  return wire::decode(body);
}

Result<Message> TcpStore::Connections::call(const Message& request, Deadline deadline) {
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
    return lost(taken.status());
  }
  Fd fd = std::move(taken).value();
  auto answer = exchange(fd.get(), wire::encode(request), deadline);
  silent_ = answer.status().code() == ErrorCode::kTimeout;
  {
    MutexLock lock(mutex_);
    busy_.erase(fd.get());
    if (answer.ok() && !closed_)
      idle_.push_back(std::move(fd));  // after an error an old answer may be in the connection
  }
  if (!answer.ok()) {
    LOCKSTEP_RETURN_IF_ERROR(check_open());
    return lost(answer.status());
  }
  LOCKSTEP_RETURN_IF_ERROR(wire::status_of(answer.value()));
  return answer;
}

Result<Message> TcpStore::Connections::call_waiting(Op op, std::span<const std::string> keys, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  Message request{static_cast<std::uint8_t>(op),
                  deadline.is_never() ? wire::kWaitForever : deadline.remaining_ms().count(),
                  std::vector<std::string>(keys.begin(), keys.end())};
  return call(request, later(deadline, kAnswerGrace));
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
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, connect_patiently(options, deadline));
  std::unique_ptr<Connections, LeakInForks> connections(new Connections(std::move(options), std::move(fd)));
  return std::shared_ptr<TcpStore>(new TcpStore(std::move(connections)));
}

void TcpStore::close() {
  connections_->close();
}

namespace {

Message make(Op op, std::vector<std::string> parts, std::int64_t number = 0) {
  return {static_cast<std::uint8_t>(op), number, std::move(parts)};
}

Status malformed_answer() {
  return {ErrorCode::kCorrupt, "the store's answer lacks its value"};
}

}  // namespace

Status TcpStore::set(std::string_view key, std::string_view value) {
  return set_by(key, value, connections_->patience());
}

Status TcpStore::set_by(std::string_view key, std::string_view value, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, value.size()));
  return connections_->call(make(Op::kSet, {std::string(key), std::string(value)}), deadline).status();
}

Result<Bytes> TcpStore::get(std::string_view key, Deadline deadline) {
  const std::string name(key);
  LOCKSTEP_ASSIGN_OR_RETURN(auto values, multi_get({&name, 1}, deadline));
  return std::move(values[0]);
}

Result<std::int64_t> TcpStore::add(std::string_view key, std::int64_t amount) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, connections_->call(make(Op::kAdd, {std::string(key)}, amount)));
  return answer.number;
}

Result<Bytes> TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, desired.size()));
  auto request = make(Op::kCompareSet, {std::string(key), std::string(expected), std::string(desired)});
  LOCKSTEP_ASSIGN_OR_RETURN(auto answer, connections_->call(request));
  if (answer.parts.size() != 1) return malformed_answer();
  return std::move(answer.parts[0]);
}

Status TcpStore::append(std::string_view key, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, value.size()));
  return connections_->call(make(Op::kAppend, {std::string(key), std::string(value)})).status();
}

Result<std::int64_t> TcpStore::push(std::string_view list, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(list, value.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer,
                            connections_->call(make(Op::kPush, {std::string(list), std::string(value)})));
  return answer.number;
}

Status TcpStore::wait(std::span<const std::string> keys, Deadline deadline) {
  return connections_->call_waiting(Op::kWait, keys, deadline).status();
}

Result<bool> TcpStore::check(std::span<const std::string> keys) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  auto request = make(Op::kCheck, std::vector<std::string>(keys.begin(), keys.end()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, connections_->call(request));
  return answer.number != 0;
}

Result<bool> TcpStore::delete_key(std::string_view key) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, connections_->call(make(Op::kDelete, {std::string(key)})));
  return answer.number != 0;
}

Result<std::int64_t> TcpStore::num_keys() {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, connections_->call(make(Op::kNumKeys, {})));
  return answer.number;
}

std::string TcpStore::local_address() const {
  return connections_->local_address();
}

Status TcpStore::multi_set(std::span<const std::string> keys, std::span<const Bytes> values) {
  LOCKSTEP_RETURN_IF_ERROR(check_pairs(keys, values));
  std::size_t next = 0;
  while (next < keys.size()) {
    // As many as fit into one frame; one always fits.
    std::vector<std::string> parts;
    std::size_t bytes = wire::body_bytes({});
    for (; next < keys.size(); ++next) {
      bytes += 8 + keys[next].size() + values[next].size();
      if (!parts.empty() && bytes > wire::kMaxFrameBytes) break;
      parts.push_back(keys[next]);
      parts.push_back(values[next]);
    }
    LOCKSTEP_RETURN_IF_ERROR(connections_->call(make(Op::kMultiSet, std::move(parts))).status());
  }
  return {};
}

Result<std::vector<Bytes>> TcpStore::multi_get(std::span<const std::string> keys, Deadline deadline) {
  std::vector<Bytes> values;
  while (values.size() < keys.size()) {
    // The server answers as many as fit into one frame.
    LOCKSTEP_ASSIGN_OR_RETURN(auto answer, connections_->call_waiting(Op::kGet, keys.subspan(values.size()), deadline));
    if (answer.parts.empty() || answer.parts.size() > keys.size() - values.size()) return malformed_answer();
    std::move(answer.parts.begin(), answer.parts.end(), std::back_inserter(values));
  }
  return values;
}

}  // namespace lockstep::comm
