#include "hand_over_protocol.h"

#include <algorithm>
#include <cstring>

#include "base/host.h"
#include "base/random.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

template <std::size_t N>
void copy_text(std::array<char, N>& to, const std::string& from) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), N - 1));
}

Status make_status(std::int32_t code, std::string text) {
  if (code == 0) return {};
  const bool known = code > 0 && code <= static_cast<std::int32_t>(ErrorCode::kInternal);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kCorrupt, std::move(text)};
}

template <typename Carrier>
Status status_of(const Carrier& from) {
  return make_status(from.code, {from.text.data(), strnlen(from.text.data(), from.text.size())});
}

template <typename Carrier>
void put_into(const Status& status, Carrier& to) {
  to.code = static_cast<std::int32_t>(status.code());
  copy_text(to.text, status.message());
}

}  // namespace

void put(const Status& status, HandOverMessage& message) {
  put_into(status, message);
}
void put(const Status& status, HandOverAddress& address) {
  put_into(status, address);
}

Status send_message(int socket, const HandOverMessage& message, Deadline deadline, std::span<const int> descriptors) {
  return send_message(socket, std::as_bytes(std::span(&message, 1)), descriptors, deadline);
}

Status receive_message(int socket, HandOverMessage::Kind kind, HandOverMessage& message, std::vector<Fd>* descriptors,
                       Deadline deadline) {
  message.magic = 0;
  message.kind = HandOverMessage::Kind::kNone;
  Status received = receive_message(socket, std::as_writable_bytes(std::span(&message, 1)), descriptors, deadline);
  if (!received.ok() && (received.code() != ErrorCode::kIo || message.magic == 0)) return received;
  if (message.magic != HandOverMessage::kMagic)
    return {ErrorCode::kCorrupt,
            "another program, or another build of this library, is at the other end of a rank's socket"};
  LOCKSTEP_RETURN_IF_ERROR(status_of(message));
  if (message.kind != kind)
    return {ErrorCode::kMismatch, "a rank sent an unexpected message; are all of the same build?"};
  return received;
}

Result<HandOverAddress> make_address() {
  HandOverAddress address;
  LOCKSTEP_RETURN_IF_ERROR(fill_random(address.greeting));
  LOCKSTEP_RETURN_IF_ERROR(fill_random(address.token));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string name, random_socket_name("lockstep"));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string machine, boot_id());
  copy_text(address.machine, machine);
  copy_text(address.host, host_name());
  copy_text(address.socket, name);
  return address;
}

Result<HandOverAddress> read_address(const std::string& published) {
  HandOverAddress address;
  if (published.size() != sizeof(address)) return Status(ErrorCode::kCorrupt, "what rank 0 published is no address");
  std::memcpy(static_cast<void*>(&address), published.data(), sizeof(address));
  address.machine.back() = address.host.back() = address.socket.back() = 0;
  LOCKSTEP_RETURN_IF_ERROR(status_of(address));
  return address;
}

}  // namespace lockstep::comm
