// Hostile peers of the TCP store: strangers, floods, bytes outside the protocol.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"
#include "store/tcp/handshake.h"
#include "store/tcp/key_server.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/socket.h"
#include "store/tcp/wire.h"
#include "store/tcp_servers.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A bare connection, for a test to send any bytes.
Fd stranger(const TcpStoreServer& server) {
  auto fd = connect_to(server.endpoint(), soon());
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  return fd.ok() ? std::move(fd).value() : Fd();
}

// Reads until the server closes. False when it stays open.
bool is_closed_by_server(const Fd& fd) {
  std::string byte(1, '\0');
  Status status;
  while (status.ok()) status = receive_all(fd.get(), byte, soon());
  return status.code() == ErrorCode::kUnavailable;
}

bool is_closed_by_server(SecureSocket& socket) {
  std::string byte(1, '\0');
  Status status;
  while (status.ok()) status = socket.receive_all(byte, soon());
  return status.code() == ErrorCode::kUnavailable;
}

std::string greeting_of(const Fd& fd) {
  std::string greeting(handshake::kGreetingBytes, '\0');
  EXPECT_TRUE(receive_all(fd.get(), greeting, soon()).ok());
  return greeting;
}

// A proven connection whose requests are written by hand.
SecureSocket proven_stranger(const TcpStoreServer& server, const std::string& key = "") {
  Fd fd = stranger(server);
  const auto greeting = handshake::read_greeting(greeting_of(fd), "test");
  EXPECT_TRUE(greeting.ok());
  const std::string known = key.empty() ? fetch_key(greeting.value().key_socket, soon()).value() : key;
  SecureSocket socket = SecureSocket::client(std::move(fd), known, place_of(server.endpoint())).value();
  EXPECT_TRUE(socket.shake_hands(soon()).ok());
  std::string welcome(handshake::kWelcomeBytes, '\0');
  EXPECT_TRUE(socket.receive_all(welcome, soon()).ok());
  return socket;
}

// What a client of the store sends first.
std::string hello_of_client(const std::string& key, const std::string& place) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  const Fd other(ends[1]);
  SecureSocket socket = SecureSocket::client(Fd(ends[0]), key, place).value();
  EXPECT_FALSE(socket.shake_hands().value());
  std::string hello(handshake::kLongestHello, '\0');
  hello.resize(static_cast<std::size_t>(::recv(other.get(), hello.data(), hello.size(), 0)));
  return hello;
}

std::string length_prefix(std::uint32_t length) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>((length >> (8 * i)) & 0xff));
  return bytes;
}
// Hellos that are cut, damaged, too long, of another version, of another key, and recorded ones of a member.
TEST(TcpStoreFault, RandomBytesDisturbNobody) {
  const auto server = serve_with_key("secret of the job");
  auto store = connect(server->endpoint(), "secret of the job").value();
  const std::string place = place_of(server->endpoint());
  std::mt19937 random(1234);
  for (int round = 0; round < 200; ++round) {
    const Fd fd = stranger(*server);
    std::string bytes(1 + random() % 4096, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    bool closes = true;  // or waits for more
    switch (round % 5) {
      case 0: closes = bytes[0] != 22; break;
      case 1: bytes = hello_of_client("secret of nobody", place); break;
      case 2: bytes = hello_of_client("secret of the job", "10.0.0.7 29500"); break;
      case 3:
        bytes = hello_of_client("secret of the job", place);
        bytes[random() % bytes.size()] ^= 1 << random() % 8;
        closes = false;
        break;
      case 4:
        bytes = hello_of_client("secret of the job", place);
        closes = false;
        break;
    }
    static_cast<void>(send_all(fd.get(), bytes, soon()));  // may meet a closed connection
    EXPECT_TRUE(!closes || is_closed_by_server(fd)) << round;
    EXPECT_EQ(store->add("rounds", 1).value(), round + 1);
  }
  EXPECT_EQ(server->num_clients(), 1U);
}

// OpenSSL takes memory for the length that a hello announces.
TEST(TcpStoreFault, AHelloIsAsLongAsItsRecord) {
  std::string hello = hello_of_client("secret of the job", "10.0.0.7 29500");
  EXPECT_EQ(handshake::missing_of_hello(hello), 0U);
  EXPECT_EQ(handshake::missing_of_hello(hello.substr(0, 50)), hello.size() - 50);
  for (const std::size_t at : {6, 7, 8}) {  // its length
    std::string other = hello;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_EQ(handshake::missing_of_hello(other), std::nullopt) << at;
    EXPECT_EQ(handshake::missing_of_hello(other.substr(0, 50)), std::nullopt) << at;
  }
}

TEST(TcpStoreFault, BadFramesCloseOnlyTheirConnection) {
  const auto server = serve_with_key("secret of the job");
  auto store = connect(server->endpoint(), "secret of the job").value();
  ASSERT_TRUE(store->set("key", "kept").ok());
  std::mt19937 random(99);
  std::vector<std::string> frames{length_prefix(0xffffffffU) + "x", length_prefix(wire::kMaxFrameBytes + 1) + "x",
                                  length_prefix(0), length_prefix(3) + "abc",
                                  // more parts than bytes, a part longer than the frame, two requests at once
                                  length_prefix(13) + std::string(9, '\1') + length_prefix(0x7fffffff),
                                  length_prefix(17) + std::string(9, '\1') + length_prefix(1) + length_prefix(99),
                                  wire::encode({9, 0, {}}) + wire::encode({9, 0, {}})};
  for (int i = 0; i < 40; ++i) {
    std::string body(13 + random() % 200, '\0');
    for (auto& byte : body) byte = static_cast<char>(random());
    body[9] = static_cast<char>(body[9] | 0x40);  // a count that the body cannot hold
    body[12] = 0x7f;
    frames.push_back(length_prefix(static_cast<std::uint32_t>(body.size())) + body);
  }
  for (const auto& frame : frames) {
    SecureSocket socket = proven_stranger(*server, "secret of the job");
    static_cast<void>(socket.send_all(frame, soon()));
    EXPECT_TRUE(is_closed_by_server(socket));
    EXPECT_EQ(store->get("key", soon()).value(), "kept");
  }
}

TEST(TcpStoreFault, AnUnknownRequestIsAnswered) {
  const auto server = serve();
  SecureSocket socket = proven_stranger(*server);
  ASSERT_TRUE(socket.send_all(wire::encode({200, 0, {"a"}}), soon()).ok());
  std::string length(wire::kLengthBytes, '\0');
  ASSERT_TRUE(socket.receive_all(length, soon()).ok());
  std::string body(wire::frame_length(length), '\0');
  ASSERT_TRUE(socket.receive_all(body, soon()).ok());
  EXPECT_EQ(wire::status_of(wire::decode(body).value()).code(), ErrorCode::kUnsupported);
}

TEST(TcpStoreFault, SlowHalfFramesAndParkedRequestsAreNoObstacle) {
  const auto server = serve();
  auto store = connect(server->endpoint()).value();
  SecureSocket half = proven_stranger(*server);
  const std::string frame = wire::encode({static_cast<std::uint8_t>(wire::Op::kSet), 0, {"slow", "value"}});
  ASSERT_TRUE(half.send_all(frame.substr(0, 7), soon()).ok());
  SecureSocket parked = proven_stranger(*server);
  const auto wait = wire::encode({static_cast<std::uint8_t>(wire::Op::kWait), wire::kWaitForever, {"never"}});
  ASSERT_TRUE(parked.send_all(wait, soon()).ok());
  ASSERT_TRUE(store->set("key", "1").ok());
  for (const char byte : frame.substr(7)) ASSERT_TRUE(half.send_all(std::string(1, byte), soon()).ok());
  EXPECT_EQ(store->get("slow", soon()).value(), "value");
  // A second request while one is parked breaks the protocol.
  ASSERT_TRUE(parked.send_all(wait, soon()).ok());
  EXPECT_TRUE(is_closed_by_server(parked));
}

TEST(TcpStoreFault, HalfOpenConnectionsAreClosedInTime) {
  TcpStoreServerOptions options;
  options.handshake_timeout = milliseconds(30);
  options.job_key = "secret of the job";
  const auto server = serve(std::move(options));
  auto store = connect(server->endpoint(), "secret of the job").value();
  const Fd silent = stranger(*server);
  const Fd begun = stranger(*server);
  const Fd replayed = stranger(*server);
  const std::string hello = hello_of_client("secret of the job", place_of(server->endpoint()));
  ASSERT_TRUE(send_all(begun.get(), hello.substr(0, 100), soon()).ok());
  ASSERT_TRUE(send_all(replayed.get(), hello, soon()).ok());
  for (const Fd* fd : {&silent, &begun, &replayed}) EXPECT_TRUE(is_closed_by_server(*fd));
  EXPECT_EQ(server->num_clients(), 1U);
  EXPECT_TRUE(store->set("key", "1").ok());
}

TEST(TcpStoreFault, AFloodOfStrangersDoesNotLockRanksOut) {
  TcpStoreServerOptions options;
  options.max_unproven = 8;
  const auto server = serve(std::move(options));
  auto before = connect(server->endpoint()).value();
  std::vector<Fd> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(stranger(*server));
  EXPECT_TRUE(connect(server->endpoint()).value()->set("key", "1").ok());
  EXPECT_EQ(before->get("key", soon()).value(), "1");
  for (int i = 0; i < 90; ++i) EXPECT_TRUE(is_closed_by_server(flood[static_cast<std::size_t>(i)])) << i;
}

// As a job's process needs them for files of its own.
TEST(TcpStoreFault, StrangersTakeAQuarterOfTheDescriptorsAtMost) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{80, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  TcpStoreServerOptions options;
  options.handshake_timeout = std::chrono::minutes(1);  // strangers are not closed because of it
  const auto server = serve(std::move(options));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);  // the strangers are of this process too
  std::vector<Fd> flood;
  for (int i = 0; i < 60; ++i) flood.push_back(stranger(*server));
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(is_closed_by_server(flood[static_cast<std::size_t>(i)])) << i;
  EXPECT_TRUE(connect(server->endpoint()).ok());
}

// The memory of this process that is its own, in KiB.
long own_memory() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    long kib = 0;
    if (word == "Private_Dirty:" && file >> kib) return kib;
  }
  return 0;
}

// Silent ones, half a hello, garbage, a hello that announces 128 KiB, hellos of another key, and the recorded hello of
// a member, which alone makes the store begin to encrypt. Takes 5 s.
TEST(TcpStoreFault, TenThousandStrangersCostLittle) {
  const auto server = serve_with_key("secret of the job");
  const std::string place = place_of(server->endpoint());
  const auto member = connect(server->endpoint(), "secret of the job").value();
  const std::string recorded = hello_of_client("secret of the job", place);
  const std::array<std::string, 6> hellos{"",
                                          recorded.substr(0, recorded.size() - 1),
                                          "GET / HTTP/1.1\r\n\r\n",
                                          std::string("\x16\x03\x01\x00\x04\x01\x01\xff\xff", 9),
                                          hello_of_client("secret of nobody", place),
                                          recorded};
  std::vector<Fd> open(400);  // more than the server keeps
  long before = 0;
  auto slowest = Deadline::Clock::duration::zero();
  for (std::size_t i = 0; i < 10'000; ++i) {
    if (i == 1'000) before = own_memory();
    Fd& fd = open[i % open.size()] = stranger(*server);
    ::send(fd.get(), hellos[i % hellos.size()].data(), hellos[i % hellos.size()].size(), MSG_NOSIGNAL);
    if (i % 10 != 0) continue;
    const auto start = Deadline::Clock::now();
    ASSERT_TRUE(member->set("key", "1").ok());
    slowest = std::max(slowest, Deadline::Clock::now() - start);
  }
  EXPECT_LT(own_memory() - before, 4 << 10) << "KiB more than after 1,000 strangers";
  EXPECT_LT(slowest, seconds(1));
  EXPECT_EQ(server->num_clients(), 1U);
  EXPECT_TRUE(connect(server->endpoint(), "secret of the job").ok());
}

}  // namespace
}  // namespace lockstep::comm
