#include "hand_over.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "base/host.h"
#include "base/poll.h"
#include "hand_over_protocol.h"
#include "known_memory.h"
#include "memory_file.h"
#include "segment_table.h"
#include "store/membership/joined_twice.h"
#include "store/tcp/status_text.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(200);
constexpr auto kAnswerGrace = std::chrono::seconds(1);
constexpr std::size_t kMaxUnidentified = 64;
constexpr int kMaxAccepted = 256;  // in one go: a flood of connections must not delay the ranks that have connected
constexpr auto kLastMoments = std::chrono::milliseconds(200);  // of a process that is ending

constexpr const char* kAddress = "address";

std::string key_of(const std::string& group, const char* what) {
  return fmt::format("lockstep/{}/{}", group, what);
}

bool has_ended(int process, Deadline deadline) {
  pollfd entry{process, POLLIN, 0};
  const auto ready = poll_until(std::span(&entry, 1), deadline);
  return ready.ok() && (entry.revents & POLLIN) != 0;
}

Result<Fd> open_own_process() {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid()) return Status::from_errno("pidfd_open (Linux 5.3 or newer is needed)", errno);
  return process;
}

// Whether a descriptor that was handed over is a pidfd; waiting for another kind would be wrong.
bool is_process(int fd) {
  constexpr auto kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older C libraries lack
  siginfo_t ignored{};
  return waitid(kPidfd, fd, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != EBADF;
}

Result<Peer> make_peer(const Introduction& introduction, Fd arena, Fd process) {
  LOCKSTEP_ASSIGN_OR_RETURN(KnownArena known,
                            share_arena(std::move(arena), introduction.first_bytes, std::move(process)));
  return Peer{std::move(known.view), std::move(known.process), static_cast<int>(introduction.pid)};
}

class Exchange {
 public:
  Exchange(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline)
      : store_(store), arena_(arena), options_(options), deadline_(deadline) {
    self_.rank = options.rank;
    self_.world_size = options.world_size;
    self_.pid = getpid();
    self_.first_bytes = arena.first_bytes();
  }

  Result<HandOver> run() { return options_.rank == 0 ? run_rank_zero() : run_other_rank(); }

 private:
  std::string key(const char* what) const { return key_of(options_.name, what); }
  std::string name(int rank) const { return fmt::format("rank {}", options_.number(rank)); }
  Status own_error(const Status& status) const { return status.with_context(name(options_.rank)); }
  // Where this rank talks to rank 0 alone: a timeout or a closed connection is rank 0's, any other error this rank's
  // own.
  Status with_culprit(const Status& status) const {
    const bool silent = status.code() == ErrorCode::kPeerFailed || status.code() == ErrorCode::kTimeout;
    return status.with_context(name(silent ? 0 : options_.rank));
  }

  // Rank 0: receives the descriptors of all ranks, sends all of them to all, and tells all whether everybody has them.
  Result<HandOver> run_rank_zero() {
    sockets_.resize(options_.world_size);
    auto parts = gather_and_share();
    if (options_.world_size == 1) return parts;
    // Ranks that come later read it in the store.
    if (!parts.ok()) publish_failure(parts.status());
    HandOverMessage verdict;
    verdict.kind = HandOverMessage::Kind::kVerdict;
    put(parts.status(), verdict);
    const Deadline by = parts.ok() ? deadline_ : Deadline::after(std::chrono::nanoseconds(0));
    for (const auto* list : {&sockets_, &refused_}) {
      for (const Fd& socket : *list) {
        // All ranks notice by themselves when one has died by now.
        if (socket.valid()) (void)send_message(socket.get(), verdict, by);
      }
    }
    return parts;
  }

  Result<HandOver> gather_and_share() {
    auto control = prepare();
    if (!control.ok()) return own_error(control.status());
    if (options_.world_size > 1) {
      LOCKSTEP_RETURN_IF_ERROR(accept_all());
      for (int rank = 1; rank < options_.world_size; ++rank) send_parts(rank, control->get());
    }
    auto parts = build(*control);
    if (!parts.ok()) return own_error(parts.status());
    LOCKSTEP_RETURN_IF_ERROR(receive_reports());
    return parts;
  }

  // Rank 0's own descriptors, and the control memory.
  Result<Fd> prepare() {
    LOCKSTEP_ASSIGN_OR_RETURN(Fd control, make_memory_file("lockstep-control", options_.control_bytes));
    introductions_.resize(options_.world_size);
    descriptors_.resize(options_.world_size);
    introductions_[0] = self_;
    Fd arena(fcntl(arena_.fd(), F_DUPFD_CLOEXEC, 0));
    if (!arena.valid()) return Status::from_errno("cannot hand over this rank's shared memory", errno);
    descriptors_[0].push_back(std::move(arena));
    auto process = open_own_process();
    if (process.ok()) descriptors_[0].push_back(std::move(process).value());
    if (!process.ok() && options_.world_size > 1) return process.status();
    return control;
  }

  void publish_failure(const Status& why) {
    (void)store_.set(key("refused"), to_text(why));
    Address nowhere;
    put(why, nowhere);
    (void)store_.set(key(kAddress), {reinterpret_cast<const char*>(&nowhere), sizeof(nowhere)});
  }

  // A failure shows when the rank's report is received; the report may say why the rank has left.
  void send_parts(int rank, int control) {
    LOCKSTEP_FAULT_POINT("hand over: answer");
    HandOverMessage message;
    message.kind = HandOverMessage::Kind::kControl;
    Status sent = send_message(sockets_[rank].get(), message, deadline_, std::span(&control, 1));
    for (int peer = 0; sent.ok() && peer < options_.world_size; ++peer) {
      const std::array<int, 2> pair{descriptors_[peer][0].get(), descriptors_[peer][1].get()};
      message.kind = HandOverMessage::Kind::kPeer;
      message.introduction = introductions_[peer];
      sent = send_message(sockets_[rank].get(), message, deadline_, pair);
    }
  }

  // Each rank reports whether it has mapped everything. The first failure decides for all.
  Status receive_reports() {
    for (int rank = 1; rank < options_.world_size; ++rank) {
      HandOverMessage report;
      const Status received =
          receive_message(sockets_[rank].get(), HandOverMessage::Kind::kReport, report, nullptr, deadline_);
      if (!received.ok()) return received.with_context(fmt::format("group '{}': {}", options_.name, name(rank)));
    }
    return {};
  }

  // Opens rank 0's socket and publishes its address in the store.
  Status open_listener() {
    LOCKSTEP_ASSIGN_OR_RETURN(address_, make_address());
    LOCKSTEP_ASSIGN_OR_RETURN(listener_, listen_unix(address_.socket.data(), options_.world_size + 8));
    LOCKSTEP_RETURN_IF_ERROR(store_.set(key(kAddress), {reinterpret_cast<const char*>(&address_), sizeof(address_)}));
    LOCKSTEP_FAULT_POINT("hand over: published");
    return {};
  }

  Status accept_all() {
    if (const Status opened = open_listener(); !opened.ok()) return own_error(opened);
    Deadline next_look = Deadline::after(kLookEvery);
    for (int joined = 1; joined < options_.world_size;) {
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

  Status accept_connections() {
    HandOverMessage greeting;
    greeting.kind = HandOverMessage::Kind::kGreeting;
    greeting.token = address_.greeting;
    const Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
    for (int accepted = 0; accepted < kMaxAccepted; ++accepted) {
      LOCKSTEP_ASSIGN_OR_RETURN(Fd socket, accept_unix(listener_.get()));
      if (!socket.valid()) return {};
      if (!check_same_user(socket.get()).ok() || !send_message(socket.get(), greeting, at_once).ok()) continue;
      // Ranks send at once: a connection that is silent while so many others come is not a rank.
      if (unidentified_.size() >= static_cast<std::size_t>(options_.world_size) + kMaxUnidentified)
        unidentified_.erase(unidentified_.begin());
      unidentified_.push_back(std::move(socket));
    }
    return {};
  }

  // Reads what a connection has sent, if anything. True: it is a rank. Closes a connection that is not one of ours.
  Result<bool> read_introduction(Fd& connection) {
    HandOverMessage message;
    std::vector<Fd> descriptors;
    const Status read = receive_message(connection.get(), HandOverMessage::Kind::kIntroduction, message, &descriptors,
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

  // An error when a rank has published that it cannot join, or at the deadline.
  Status check_waiting() {
    const std::array<std::string, 1> refused{key("refused")};
    if (auto there = store_.check(refused); there.ok() && there.value()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const Bytes why, store_.get(refused[0], deadline_));
      return status_from(why);
    }
    if (!deadline_.expired()) return {};
    std::string missing;
    for (int rank = 1; rank < options_.world_size; ++rank) {
      if (!sockets_[rank].valid()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", options_.number(rank));
    }
    return {ErrorCode::kTimeout, fmt::format("group '{}': rank(s) {} did not join", options_.name, missing)};
  }

  Status check(const Introduction& introduction, const std::vector<Fd>& descriptors) const {
    const int rank = introduction.rank;
    if (introduction.world_size != options_.world_size || rank <= 0 || rank >= options_.world_size) {
      return {ErrorCode::kMismatch,
              fmt::format("group '{}': pid {} joined as rank {} of {}, rank 0 expects a world of {}", options_.name,
                          introduction.pid, rank, introduction.world_size, options_.world_size)};
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

  Result<HandOver> run_other_rank() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Address address, find_rank_zero());
    auto reached = introduce_self(address);
    if (!reached.ok()) return has_verdict_ ? reached.status() : refuse(reached.status());
    const Fd socket = std::move(reached).value();
    auto parts = take_parts(socket.get());
    if (has_verdict_) return parts.status();
    HandOverMessage report;
    report.kind = HandOverMessage::Kind::kReport;
    put(parts.status(), report);
    const Status told = send_message(socket.get(), report, deadline_);
    const Status verdict = told.ok() ? receive_verdict(socket.get()) : told;
    if (has_verdict_) return verdict.ok() ? parts : verdict;
    return why_no_connection(with_culprit(parts.ok() ? verdict : parts.status()));
  }

  Result<Address> find_rank_zero() {
    auto announced = store_.get(key(kAddress), deadline_);
    if (!announced.ok()) return announced.status().with_context("waiting for " + name(0));
    auto address = read_address(announced.value());
    if (!address.ok()) return address.status().with_context(fmt::format("group '{}'", options_.name));
    return address;
  }

  // Both ends must belong to one user and know the group's tokens before anything is handed over.
  Result<Fd> introduce_self(const Address& address) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string machine, boot_id());
    if (machine != address.machine.data()) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("group '{}': {} runs on host {}, {} on host {}; ranks that are to share memory (those with the "
                      "same LOCKSTEP_MACHINE) must be on one machine",
                      options_.name, name(options_.rank), host_name(), name(0), address.host.data()));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Fd process, open_own_process());
    LOCKSTEP_FAULT_POINT("hand over: called");
    auto connected = connect_unix(address.socket.data(), deadline_);
    if (!connected.ok()) return why_no_connection(connected.status().with_context(name(0)));
    Fd socket = std::move(connected).value();
    if (const Status same = check_same_user(socket.get()); !same.ok())
      return same.with_context(fmt::format("the socket of {} is not of this job, nothing was handed over", name(0)));
    HandOverMessage message;
    const Status greeted =
        receive_message(socket.get(), HandOverMessage::Kind::kGreeting, message, nullptr, answer_by());
    if (!greeted.ok()) return why_no_connection(greeted.with_context(name(0)));
    if (message.token != address.greeting) {
      return Status(ErrorCode::kPermission, fmt::format("group '{}': another program, or another job, listens at rank "
                                                        "0's socket; nothing was handed over",
                                                        options_.name));
    }
    message = HandOverMessage();
    message.kind = HandOverMessage::Kind::kIntroduction;
    message.token = address.token;
    message.introduction = self_;
    const std::array<int, 2> own{arena_.fd(), process.get()};
    if (const Status sent = send_message(socket.get(), message, deadline_, own); !sent.ok())
      return why_no_connection(sent.with_context(name(0)));
    LOCKSTEP_FAULT_POINT("hand over: introduced");
    return socket;
  }

  // A little longer than rank 0 waits, because rank 0 knows who is missing.
  Deadline answer_by() const { return Deadline::after(deadline_.remaining() + kAnswerGrace); }

  // Receives the next message of rank 0, or its verdict that there will be no group.
  Status receive_part(int socket, HandOverMessage::Kind kind, HandOverMessage& message, std::vector<Fd>& descriptors,
                      Deadline deadline) {
    const Status received = receive_message(socket, kind, message, &descriptors, deadline);
    has_verdict_ = message.kind == HandOverMessage::Kind::kVerdict;
    return received;
  }

  Result<HandOver> take_parts(int socket) {
    HandOverMessage message;
    std::vector<Fd> control;
    LOCKSTEP_RETURN_IF_ERROR(receive_part(socket, HandOverMessage::Kind::kControl, message, control, answer_by()));
    if (control.size() != 1) return Status(ErrorCode::kCorrupt, name(0) + " sent no control memory");
    introductions_.resize(options_.world_size);
    descriptors_.resize(options_.world_size);
    for (int rank = 0; rank < options_.world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(
          receive_part(socket, HandOverMessage::Kind::kPeer, message, descriptors_[rank], deadline_));
      introductions_[rank] = message.introduction;
      if (descriptors_[rank].size() != 2)
        return Status(ErrorCode::kCorrupt, fmt::format("no memory of {} arrived", name(rank)));
    }
    return build(control[0]);
  }

  // Skips messages that this rank has no use for any more.
  Status receive_verdict(int socket) {
    for (;;) {
      HandOverMessage message;
      const Status received = receive_message(socket, HandOverMessage::Kind::kVerdict, message, nullptr, answer_by());
      has_verdict_ = message.kind == HandOverMessage::Kind::kVerdict;
      if (has_verdict_ || message.kind == HandOverMessage::Kind::kNone) return received;
    }
  }

  // Publishes in the store that this rank cannot join, because rank 0 does not know of it. Best effort.
  Status refuse(const Status& why) {
    const Status mine = own_error(why);
    if (why.code() != ErrorCode::kPeerFailed && why.code() != ErrorCode::kTimeout)
      (void)store_.set(key("refused"), to_text(mine));
    return mine;
  }

  // Rank 0 may have given up and published the reason.
  Status why_no_connection(const Status& failure) {
    const std::array<std::string, 1> refused{key("refused")};
    if (auto there = store_.check(refused); there.ok() && there.value()) {
      auto why = store_.get(refused[0], deadline_);
      has_verdict_ = why.ok();
      if (why.ok()) return status_from(why.value());
    }
    return failure;
  }

  Result<HandOver> build(const Fd& control) {
    LOCKSTEP_FAULT_POINT("hand over: answered");
    HandOver result;
    LOCKSTEP_ASSIGN_OR_RETURN(result.control, share_control(control, options_.control_bytes));
    for (int rank = 0; rank < options_.world_size; ++rank) {
      Fd process = descriptors_[rank].size() > 1 ? std::move(descriptors_[rank][1]) : Fd();
      LOCKSTEP_ASSIGN_OR_RETURN(Peer peer,
                                make_peer(introductions_[rank], std::move(descriptors_[rank][0]), std::move(process)));
      result.peers.push_back(std::move(peer));
    }
    return result;
  }

  Store& store_;
  const SharedArena& arena_;
  const HandOverOptions& options_;
  Deadline deadline_;
  Introduction self_;
  bool has_verdict_ = false;  // not rank 0: the outcome for the group has arrived
  Address address_;           // rank 0: where the others connect
  // Rank 0's. All stay open until the store says why there is no group: a rank that loses its connection looks there.
  Fd listener_;
  std::vector<Fd> unidentified_;  // connected, have sent nothing yet
  std::vector<Fd> sockets_;       // to the others; by rank
  std::vector<Fd> refused_;       // claimed to be a rank but cannot be one
  std::vector<Introduction> introductions_;
  std::vector<std::vector<Fd>> descriptors_;  // arena, pidfd; by rank
};

}  // namespace

bool Peer::is_gone() const {
  return (process->valid() && has_ended(process->get(), Deadline::after(std::chrono::nanoseconds(0)))) ||
         !arena->owner_runs();
}

// A dying process closes its descriptors before its pidfd shows the end, so wait a moment.
const char* Peer::how_gone() const {
  const bool ended = process->valid() && has_ended(process->get(), Deadline::after(kLastMoments));
  return ended ? "died" : "ended or replaced its program (exec)";
}

std::string hand_over_key(const std::string& group) {
  return key_of(group, kAddress);
}

Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline) {
  return Exchange(store, arena, options, deadline).run();
}

}  // namespace lockstep::comm
