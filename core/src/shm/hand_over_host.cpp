// Rank 0's side of a hand-over: it receives the descriptors of all ranks, sends all of them to all, and tells all
// whether everybody has them.
#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "base/host.h"
#include "base/poll.h"
#include "hand_over_protocol.h"
#include "memory_file.h"
#include "store/membership/exchange_members.h"
#include "store/tcp/status_text.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(200);
constexpr std::size_t kMaxUnidentified = 64;
constexpr int kMaxAccepted = 256;  // in one go: a flood of connections must not delay the ranks that have connected

class Host : public HandOverSide {
 public:
  using HandOverSide::HandOverSide;
  Result<HandOver> run();

 private:
  using Message = HandOverMessage;

  Result<HandOver> gather_and_share();
  // Rank 0's own descriptors, and the control memory.
  Result<Fd> prepare();
  // Opens the socket and publishes its address in the store.
  Status open_listener();
  Status accept_all();
  Status accept_connections();
  // Reads what a connection has sent, if anything. True: it is a rank. Closes a connection that is not one of ours.
  Result<bool> read_introduction(Fd& connection);
  Status check(const Introduction& introduction, const std::vector<Fd>& descriptors) const;
  // An error when a rank has published that it cannot join, or at the deadline.
  Status check_waiting();
  // A failure shows when the rank's report is received; the report may say why the rank has left.
  void send_parts(int rank, int control);
  // Each rank reports whether it has mapped everything. The first failure decides for all.
  Status receive_reports();
  void tell_verdict(const Status& verdict);

  HandOverAddress address_;
  // All stay open until the store says why there is no group: a rank that loses its connection looks there.
  Fd listener_;
  std::vector<Fd> unidentified_;  // connected, have sent nothing yet
  std::vector<Fd> sockets_;       // to the others; by rank
  std::vector<Fd> refused_;       // claimed to be a rank but cannot be one
};

Result<HandOver> Host::run() {
  sockets_.resize(options_.group_size);
  auto parts = gather_and_share();
  if (options_.group_size > 1) tell_verdict(parts.status());
  return parts;
}

void Host::tell_verdict(const Status& verdict) {
  // Ranks that come later read it in the store.
  if (!verdict.ok()) refuse_hand_over(store_, options_, verdict);
  Message message;
  message.kind = Message::Kind::kVerdict;
  put(verdict, message);
  const Deadline by = verdict.ok() ? deadline_ : Deadline::after(std::chrono::nanoseconds(0));
  for (const auto* list : {&sockets_, &refused_}) {
    for (const Fd& socket : *list) {
      // All ranks notice by themselves when one has died by now.
      if (socket.valid()) (void)send_message(socket.get(), message, by);
    }
  }
}

Result<HandOver> Host::gather_and_share() {
  auto control = prepare();
  if (!control.ok()) return own_error(control.status());
  if (options_.group_size > 1) {
    LOCKSTEP_RETURN_IF_ERROR(accept_all());
    for (int rank = 1; rank < options_.group_size; ++rank) send_parts(rank, control->get());
  }
  auto parts = build(*control);
  if (!parts.ok()) return own_error(parts.status());
  LOCKSTEP_RETURN_IF_ERROR(receive_reports());
  return parts;
}

Result<Fd> Host::prepare() {
  LOCKSTEP_ASSIGN_OR_RETURN(Fd control, make_memory_file("lockstep-control", options_.control_bytes));
  introductions_[0] = self_;
  Fd arena(fcntl(arena_.fd(), F_DUPFD_CLOEXEC, 0));
  if (!arena.valid()) return Status::from_errno("cannot hand over this rank's shared memory", errno);
  descriptors_[0].push_back(std::move(arena));
  auto process = open_own_process();
  if (process.ok()) {
    descriptors_[0].push_back(std::move(process).value());
  } else if (options_.group_size > 1) {
    return process.status();
  }
  return control;
}

Status Host::open_listener() {
  LOCKSTEP_ASSIGN_OR_RETURN(address_, make_address());
  LOCKSTEP_ASSIGN_OR_RETURN(listener_, listen_unix(address_.socket.data(), options_.group_size + 8));
  LOCKSTEP_RETURN_IF_ERROR(publish(store_, options_.name, address_));
  LOCKSTEP_FAULT_POINT("hand over: published");
  return {};
}

Status Host::accept_all() {
  if (const Status opened = open_listener(); !opened.ok()) return own_error(opened);
  Deadline next_look = Deadline::after(kLookEvery);
  for (int joined = 1; joined < options_.group_size;) {
    const Deadline until = earlier(next_look, deadline_);
    LOCKSTEP_RETURN_IF_ERROR(wait_readable(unidentified_, listener_.get(), until).status());
    if (next_look.expired() || deadline_.expired()) {
      LOCKSTEP_RETURN_IF_ERROR(check_waiting());
      next_look = Deadline::after(kLookEvery);
    }
    if (Status failed = accept_connections(); !failed.ok()) return own_error(failed);
    for (Fd& connection : unidentified_) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool is_rank, read_introduction(connection));
      if (is_rank) ++joined;
    }
    std::erase_if(unidentified_, [](const Fd& connection) { return !connection.valid(); });
  }
  return {};
}

Status Host::accept_connections() {
  Message greeting;
  greeting.kind = Message::Kind::kGreeting;
  greeting.token = address_.greeting;
  const Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
  for (int accepted = 0; accepted < kMaxAccepted; ++accepted) {
    LOCKSTEP_ASSIGN_OR_RETURN(Fd socket, accept_unix(listener_.get()));
    if (!socket.valid()) return {};
    if (!check_same_user(socket.get()).ok() || !send_message(socket.get(), greeting, at_once).ok()) continue;
    // Ranks send at once: a connection that is silent while so many others come is not a rank.
    if (unidentified_.size() >= static_cast<std::size_t>(options_.group_size) + kMaxUnidentified)
      unidentified_.erase(unidentified_.begin());
    unidentified_.push_back(std::move(socket));
  }
  return {};
}

Result<bool> Host::read_introduction(Fd& connection) {
  Message message;
  std::vector<Fd> descriptors;
  const Status read = receive_message(connection.get(), Message::Kind::kIntroduction, message, &descriptors,
                                      Deadline::after(std::chrono::nanoseconds(0)));
  if (read.code() == ErrorCode::kTimeout) return false;
  Fd member = std::exchange(connection, Fd());
  if ((!read.ok() && read.code() != ErrorCode::kIo) || message.token != address_.token) return false;
  Status checked = read.ok() ? check(message.introduction, descriptors) : own_error(read);
  if (!checked.ok()) {
    refused_.push_back(std::move(member));
    return checked;
  }
  const int rank = message.introduction.rank;
  sockets_[rank] = std::move(member);
  descriptors_[rank] = std::move(descriptors);
  introductions_[rank] = message.introduction;
  return true;
}

Status Host::check(const Introduction& introduction, const std::vector<Fd>& descriptors) const {
  const int rank = introduction.rank;
  if (introduction.group_size != options_.group_size || rank <= 0 || rank >= options_.group_size) {
    return {ErrorCode::kMismatch,
            fmt::format("group '{}': pid {} joined as rank {} of {}, rank 0 expects a group of {}", options_.name,
                        introduction.pid, rank, introduction.group_size, options_.group_size)};
  }
  if (sockets_[rank].valid()) {
    return joined_twice(name(rank), {static_cast<int>(introductions_[rank].pid), host_name()},
                        {static_cast<int>(introduction.pid), host_name()})
        .with_context(fmt::format("group '{}'", options_.name));
  }
  if (descriptors.size() != 2 || !is_process(descriptors[1].get())) {
    return {ErrorCode::kCorrupt, fmt::format("{} handed over {} descriptors, expected its memory and its process",
                                             name(rank), descriptors.size())};
  }
  return check_memory_file(descriptors[0].get(), with_table(introduction.first_bytes))
      .status()
      .with_context(name(rank));
}

Status Host::check_waiting() {
  const std::array<std::string, 1> refused{refused_key(options_.name)};
  if (auto there = store_.check(refused); there.ok() && there.value()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes why, store_.get(refused[0], deadline_));
    return status_from(why);
  }
  // A store that watches the ranks says here that one of them is gone.
  const Status watched = store_.wait(refused, Deadline::after(std::chrono::nanoseconds(0)));
  if (watched.code() == ErrorCode::kPeerFailed) return watched.with_context(fmt::format("group '{}'", options_.name));
  if (!deadline_.expired()) return {};
  std::vector<int> missing;
  for (int rank = 1; rank < options_.group_size; ++rank) {
    if (!sockets_[rank].valid()) missing.push_back(rank);
  }
  return {ErrorCode::kTimeout,
          fmt::format("group '{}': {} did not join", options_.name, options_.roster.list(missing))};
}

void Host::send_parts(int rank, int control) {
  LOCKSTEP_FAULT_POINT("hand over: answer");
  Message message;
  message.kind = Message::Kind::kControl;
  Status sent = send_message(sockets_[rank].get(), message, deadline_, std::span(&control, 1));
  for (int peer = 0; sent.ok() && peer < options_.group_size; ++peer) {
    const std::array<int, 2> pair{descriptors_[peer][0].get(), descriptors_[peer][1].get()};
    message.kind = Message::Kind::kPeer;
    message.introduction = introductions_[peer];
    sent = send_message(sockets_[rank].get(), message, deadline_, pair);
  }
}

Status Host::receive_reports() {
  for (int rank = 1; rank < options_.group_size; ++rank) {
    Message report;
    const Status received = receive_message(sockets_[rank].get(), Message::Kind::kReport, report, nullptr, deadline_);
    if (!received.ok()) return received.with_context(fmt::format("group '{}': {}", options_.name, name(rank)));
  }
  return {};
}

}  // namespace

Result<HandOver> hand_over_as_host(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                   Deadline deadline) {
  return Host(store, arena, options, deadline).run();
}

}  // namespace lockstep::comm
