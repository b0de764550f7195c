#include "store/tcp/session.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <utility>

#include "base/poll.h"
#include "store/tcp/connect.h"
#include "store/tcp/socket.h"
#include "store/tcp/wire.h"

namespace lockstep::comm {
namespace {

using wire::Message;

constexpr auto kRequestTimeout = std::chrono::seconds(10);

// The next whole message of `in`, which it removes; nullopt: it is not complete.
Result<std::optional<Message>> next_message(std::string& in) {
  if (in.size() < wire::kLengthBytes) return std::optional<Message>();
  const std::size_t bytes = wire::frame_length(in);
  if (bytes == 0) {  // a heartbeat
    in.erase(0, wire::kLengthBytes);
    return next_message(in);
  }
  if (bytes > wire::kMaxFrameBytes)
    return Status(ErrorCode::kCorrupt, "the store announced an answer that is too long");
  if (in.size() < wire::kLengthBytes + bytes) return std::optional<Message>();
  auto message = wire::decode(std::string_view(in).substr(wire::kLengthBytes, bytes));
  in.erase(0, wire::kLengthBytes + bytes);
  LOCKSTEP_RETURN_IF_ERROR(message.status());
  return std::optional<Message>(std::move(message).value());
}

}  // namespace

Result<StoreSession> StoreSession::connect(const TcpStoreOptions& options, Deadline deadline, int interrupt_fd) {
  LOCKSTEP_ASSIGN_OR_RETURN(StoreConnection made, connect_patiently(options, deadline, interrupt_fd));
  LOCKSTEP_ASSIGN_OR_RETURN(Endpoint local, local_endpoint(made.socket.fd()));
  LOCKSTEP_ASSIGN_OR_RETURN(Endpoint server, remote_endpoint(made.socket.fd()));
  return StoreSession(std::move(made.socket), std::move(local), std::move(server));
}

Status StoreSession::leave_will(std::string_view list, std::string_view value, std::chrono::milliseconds silence) {
  const Deadline deadline = Deadline::after(kRequestTimeout);
  const Message will{static_cast<std::uint8_t>(wire::kWill), silence.count(), {std::string(list), std::string(value)}};
  LOCKSTEP_RETURN_IF_ERROR(socket_.send_all(wire::encode(will), deadline));
  // An earlier will has brought heartbeats, of which take() may have left a part.
  std::optional<Message> answer;
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(answer, next_message(in_));
    if (answer) break;
    LOCKSTEP_ASSIGN_OR_RETURN(const bool more, read_more());
    if (more) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, poll_until(fd(), POLLIN, deadline));
    if (!ready) return Status(ErrorCode::kTimeout, "no answer in time");
  }
  // The server's end sends heartbeats, this one only probes, one a second: a single lost probe must not count.
  notice_loss_within(fd(), silence + std::chrono::seconds(1));
  return wire::status_of(*answer);
}

Status StoreSession::ask(std::string_view key) {
  const Message request = wire::request_of({.op = StoreCall::Op::kGet, .keys = {std::string(key)}});
  return socket_.send_all(wire::encode(request), Deadline::after(kRequestTimeout));
}

Result<std::optional<Bytes>> StoreSession::take() {
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<Message> answer, next_message(in_));
    if (answer) {
      LOCKSTEP_RETURN_IF_ERROR(wire::status_of(*answer));
      if (answer->parts.size() != 1) return Status(ErrorCode::kCorrupt, "the store's answer lacks its value");
      return std::optional<Bytes>(std::move(answer->parts[0]));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const bool more, read_more());
    if (!more) return std::optional<Bytes>();
  }
}

Result<bool> StoreSession::read_more() {
  std::array<char, 16384> room;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t count, socket_.read_some(room));
  in_.append(room.data(), count);
  return count > 0;
}

}  // namespace lockstep::comm
