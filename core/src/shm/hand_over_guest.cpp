// The side of every rank but 0 in a hand-over: it sends its descriptors to rank 0 and receives those of all ranks.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/fault_point.h"
#include "base/host.h"
#include "hand_over_protocol.h"
#include "store/tcp/status_text.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

constexpr auto kAnswerGrace = std::chrono::seconds(1);

class Guest : public HandOverSide {
 public:
  using HandOverSide::HandOverSide;
  Result<HandOver> run();

 private:
  using Message = HandOverMessage;

  Result<HostAddress> find_host();
  // Both ends must belong to one user and know the group's tokens before anything is handed over.
  Result<Fd> introduce_self(const HostAddress& address);
  // Connects to what listens at rank 0's address and checks that it is rank 0.
  Result<Fd> connect(const HostAddress& address);
  Status check_machine(const HostAddress& address) const;
  Result<HandOver> take_parts(int socket);
  // Receives the next message of rank 0, or its verdict that there will be no group.
  Status receive_part(int socket, Message::Kind kind, Message& message, std::vector<Fd>& descriptors,
                      Deadline deadline);
  // Skips messages that this rank has no use for any more.
  Status receive_verdict(int socket);

  // Publishes in the store that this rank cannot join, because rank 0 does not know of it. Best effort.
  Status refuse(const Status& why);
  // Rank 0 may have given up and published the reason.
  Status why_no_connection(const Status& failure);
  // Where this rank talks to rank 0 alone: a timeout or a closed connection is rank 0's, any other error this rank's
  // own.
  Status with_culprit(const Status& status) const {
    const bool silent = status.code() == ErrorCode::kPeerFailed || status.code() == ErrorCode::kTimeout;
    return status.with_context(name(silent ? 0 : options_.rank));
  }
  // A little longer than rank 0 waits, because rank 0 knows who is missing.
  Deadline answer_by() const { return Deadline::after(deadline_.remaining() + kAnswerGrace); }

  bool has_verdict_ = false;  // the outcome for the group has arrived
};

Result<HandOver> Guest::run() {
  LOCKSTEP_ASSIGN_OR_RETURN(const HostAddress address, find_host());
  auto reached = introduce_self(address);
  if (!reached.ok()) return has_verdict_ ? reached.status() : refuse(reached.status());
  const Fd socket = std::move(reached).value();
  auto parts = take_parts(socket.get());
  if (has_verdict_) return parts.status();
  Message report;
  report.kind = Message::Kind::kReport;
  put(parts.status(), report);
  const Status told = send_message(socket.get(), report, deadline_);
  const Status verdict = told.ok() ? receive_verdict(socket.get()) : told;
  if (has_verdict_) return verdict.ok() ? parts : verdict;
  return why_no_connection(with_culprit(parts.ok() ? verdict : parts.status()));
}

Result<HostAddress> Guest::find_host() {
  auto announced = store_.get(hand_over_key(options_.name), deadline_);
  if (!announced.ok()) {
    const Status why = announced.status().with_context("waiting for " + name(0));
    // Rank 0 may still come. It must not wait then for a rank that has left.
    if (why.code() == ErrorCode::kTimeout) refuse_hand_over(store_, options_, own_error(why));
    return why;
  }
  auto address = read_address(announced.value());
  if (!address.ok()) return address.status().with_context(fmt::format("group '{}'", options_.name));
  return address;
}

Status Guest::check_machine(const HostAddress& address) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string machine, boot_id());
  if (machine == address.machine.data()) return {};
  return {ErrorCode::kUnsupported,
          fmt::format("group '{}': {} runs on host {}, {} on host {}; ranks that are to share memory (those with the "
                      "same LOCKSTEP_MACHINE) must be on one machine",
                      options_.name, name(options_.rank), host_name(), name(0), address.host.data())};
}

Result<Fd> Guest::connect(const HostAddress& address) {
  LOCKSTEP_FAULT_POINT("hand over: called");
  auto connected = connect_unix(address.socket.data(), deadline_);
  if (!connected.ok()) return why_no_connection(connected.status().with_context(name(0)));
  Fd socket = std::move(connected).value();
  if (const Status same = check_same_user(socket.get()); !same.ok()) {
    return same.with_context(
        fmt::format("the socket of {} is not of this job, nothing was handed over (if it is: with different names in "
                    "LOCKSTEP_MACHINE these ranks use the network)",
                    name(0)));
  }
  Message message;
  const Status greeted = receive_message(socket.get(), Message::Kind::kGreeting, message, nullptr, answer_by());
  if (!greeted.ok()) return why_no_connection(greeted.with_context(name(0)));
  if (message.token == address.greeting) return socket;
  return Status(ErrorCode::kPermission,
                fmt::format("group '{}': another program, or another job, listens at rank 0's socket; nothing was "
                            "handed over",
                            options_.name));
}

Result<Fd> Guest::introduce_self(const HostAddress& address) {
  LOCKSTEP_RETURN_IF_ERROR(check_machine(address));
  LOCKSTEP_ASSIGN_OR_RETURN(const Fd process, open_own_process());
  LOCKSTEP_ASSIGN_OR_RETURN(Fd socket, connect(address));
  Message message;
  message.kind = Message::Kind::kIntroduction;
  message.token = address.token;
  message.introduction = self_;
  const std::array<int, 2> own{arena_.fd(), process.get()};
  if (const Status sent = send_message(socket.get(), message, deadline_, own); !sent.ok())
    return why_no_connection(sent.with_context(name(0)));
  LOCKSTEP_FAULT_POINT("hand over: introduced");
  return socket;
}

Status Guest::receive_part(int socket, Message::Kind kind, Message& message, std::vector<Fd>& descriptors,
                           Deadline deadline) {
  const Status received = receive_message(socket, kind, message, &descriptors, deadline);
  has_verdict_ = message.kind == Message::Kind::kVerdict;
  return received;
}

Result<HandOver> Guest::take_parts(int socket) {
  Message message;
  std::vector<Fd> control;
  LOCKSTEP_RETURN_IF_ERROR(receive_part(socket, Message::Kind::kControl, message, control, answer_by()));
  if (control.size() != 1) return Status(ErrorCode::kCorrupt, name(0) + " sent no control memory");
  for (int rank = 0; rank < options_.group_size; ++rank) {
    LOCKSTEP_RETURN_IF_ERROR(receive_part(socket, Message::Kind::kPeer, message, descriptors_[rank], deadline_));
    introductions_[rank] = message.introduction;
    if (descriptors_[rank].size() != 2)
      return Status(ErrorCode::kCorrupt, fmt::format("no memory of {} arrived", name(rank)));
  }
  return build(control[0]);
}

Status Guest::receive_verdict(int socket) {
  for (;;) {
    Message message;
    const Status received = receive_message(socket, Message::Kind::kVerdict, message, nullptr, answer_by());
    has_verdict_ = message.kind == Message::Kind::kVerdict;
    if (has_verdict_ || message.kind == Message::Kind::kNone) return received;
  }
}

Status Guest::refuse(const Status& why) {
  const Status mine = own_error(why);
  if (why.code() != ErrorCode::kPeerFailed && why.code() != ErrorCode::kTimeout)
    refuse_hand_over(store_, options_, mine);
  return mine;
}

Status Guest::why_no_connection(const Status& failure) {
  const std::array<std::string, 1> refused{refused_key(options_.name)};
  if (auto there = store_.check(refused); there.ok() && there.value()) {
    auto why = store_.get(refused[0], deadline_);
    has_verdict_ = why.ok();
    if (why.ok()) return status_from(why.value());
  }
  return failure;
}

}  // namespace

Result<HandOver> hand_over_as_guest(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                    Deadline deadline) {
  return Guest(store, arena, options, deadline).run();
}

}  // namespace lockstep::comm
