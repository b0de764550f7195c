// What strangers can send to a store, and what a store can answer: frames, hellos of TLS, greetings.
#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "fuzz/fuzz.h"
#include "store/keys/key_value_table.h"
#include "store/tcp/handshake.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/wire.h"

namespace lockstep::fuzz {
namespace {

namespace wire = comm::wire;
namespace handshake = comm::handshake;

const std::string kKey(32, 'k');
const std::string kPlace = "127.0.0.1:29500";

void take_frame(std::string_view body) {
  Result<wire::Message> message = wire::decode(body);
  if (!message.ok()) return;
  const std::string again = wire::encode(message.value());
  require(wire::frame_length(again) == body.size());
  require(std::string_view(again).substr(wire::kLengthBytes) == body);
  (void)wire::status_of(message.value());
  (void)wire::call_of(std::move(message).value());
}

// A pair of connected sockets, so that OpenSSL answers somebody.
std::array<Fd, 2> connected() {
  std::array<int, 2> ends{};
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

void take_hello_of_client(std::string_view hello) {
  const auto missing = handshake::missing_of_hello(hello);
  if (!missing || *missing > 0) return;
  require(hello.size() <= handshake::kLongestHello);
  auto [end, other] = connected();
  auto socket = comm::SecureSocket::server(std::move(end), kKey, {kPlace}, std::string(hello));
  // Nobody has the whole handshake. The seed has its beginning.
  if (const auto done = socket.value().shake_hands(); done.ok()) require(!done.value());
}

void take_greeting(std::string_view bytes) {
  (void)handshake::read_greeting(bytes, kPlace);
}

std::string hello_of_client() {
  auto [end, other] = connected();
  auto socket = comm::SecureSocket::client(std::move(end), kKey, kPlace);
  require(!socket.value().shake_hands().value());
  std::string hello(handshake::kLongestHello, '\0');
  const ssize_t bytes = recv(other.get(), hello.data(), hello.size(), 0);
  require(bytes > 0);
  hello.resize(static_cast<std::size_t>(bytes));
  return hello;
}

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view input = bytes.substr(1);
  switch (bytes[0]) {
    case 0: return take_frame(input);
    case 1: return take_hello_of_client(input);
    case 2: return take_greeting(input);
  }
}

std::vector<std::string> seeds() {
  using Op = comm::StoreCall::Op;
  std::vector<std::string> all;
  for (const comm::StoreCall& call : std::vector<comm::StoreCall>{
           {.op = Op::kSet, .keys = {"a", "b"}, .values = {"1", "22"}},
           {.op = Op::kGet, .keys = {"a"}, .deadline = Deadline::after(std::chrono::seconds(1)), .unless = "end"},
           {.op = Op::kAdd, .keys = {"counter"}, .amount = -3},
           {.op = Op::kCompareSet, .keys = {"a"}, .values = {"", "2"}},
           {.op = Op::kNumKeys}}) {
    all.push_back(for_parser(0, wire::encode(wire::request_of(call)).substr(wire::kLengthBytes)));
  }
  all.push_back(
      for_parser(0, wire::encode(wire::failure({ErrorCode::kTimeout, "nobody came"})).substr(wire::kLengthBytes)));
  all.push_back(for_parser(1, hello_of_client()));
  all.push_back(for_parser(2, handshake::to_bytes({.source = handshake::KeySource::kStore, .key_socket = "socket"})));
  return all;
}

}  // namespace lockstep::fuzz
