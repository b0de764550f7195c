// What strangers can send to a store, and what a store can answer: frames, hellos, verdicts.
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "fuzz/fuzz.h"
#include "store/keys/key_value_table.h"
#include "store/tcp/handshake.h"
#include "store/tcp/wire.h"

namespace lockstep::fuzz {
namespace {

namespace wire = comm::wire;
namespace handshake = comm::handshake;

const std::string kKey(32, 'k');
const std::string kNonce(handshake::kNonceBytes, 'n');
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

void take_hello_of_client(std::string_view hello) {
  const std::array places{kPlace};
  const handshake::Judgement judgement = handshake::judge(kKey, places, kNonce, hello);
  // Nobody guesses the key. The seed knows it.
  const bool right = hello == handshake::client_hello(kKey, kPlace, kNonce, hello.substr(handshake::kMark.size(), 32));
  require((judgement.verdict == handshake::Verdict::kWelcome) == right);
}

void take_hello_of_server(std::string_view bytes) {
  const auto hello = handshake::read_server_hello(bytes.substr(0, handshake::kServerHelloBytes), kPlace);
  if (!hello.ok()) return;
  const std::string_view verdict = bytes.substr(std::min(bytes.size(), handshake::kServerHelloBytes));
  (void)handshake::check_verdict(kKey, kPlace, true, hello.value(), kNonce, verdict, kPlace);
}

}  // namespace

void take(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view input = bytes.substr(1);
  switch (bytes[0]) {
    case 0: return take_frame(input);
    case 1: return input.size() < handshake::kMark.size() ? void() : take_hello_of_client(input);
    case 2: return take_hello_of_server(input);
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
  all.push_back(for_parser(1, handshake::client_hello(kKey, kPlace, kNonce, kNonce)));
  const std::string hello =
      handshake::server_hello({.source = handshake::KeySource::kStore, .key_socket = "socket", .nonce = kNonce});
  all.push_back(for_parser(2, hello + std::string(handshake::kVerdictBytes, '\1')));
  return all;
}

}  // namespace lockstep::fuzz
