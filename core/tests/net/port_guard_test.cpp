// Who reaches a port that is closed to strangers. The callers are loopback addresses, of which there are many.
#include "net/port_guard.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "lockstep/base/fd.h"
#include "support/process.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  SocketAddress(const std::string& address, std::uint16_t port) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage);
    if (inet_pton(AF_INET, address.c_str(), &ipv4.sin_addr) == 1) {
      storage.ss_family = AF_INET;
      ipv4.sin_port = htons(port);
      size = sizeof ipv4;
    } else {
      EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &ipv6.sin6_addr), 1) << address;
      storage.ss_family = AF_INET6;
      ipv6.sin6_port = htons(port);
      size = sizeof ipv6;
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Fd bound_to(const std::string& address) {
  const SocketAddress local(address, 0);
  Fd socket(::socket(local.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) throw std::runtime_error("cannot open a socket");
  EXPECT_EQ(::bind(socket.get(), local.get(), local.size), 0) << address;
  return socket;
}

std::uint16_t port_of(const Fd& socket) {
  SocketAddress name("::", 0);
  EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name.storage), &name.size), 0);
  return ntohs(reinterpret_cast<const sockaddr_in&>(name.storage).sin_port);  // at the same place for IPv6
}

class Listener {
 public:
  explicit Listener(const std::string& address) : socket_(bound_to(address)) {}
  int get() const { return socket_.get(); }
  std::uint16_t port() const { return port_of(socket_); }
  void listen() const { ASSERT_EQ(::listen(socket_.get(), 16), 0); }

 private:
  Fd socket_;
};

bool is_connected(const Fd& socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_state == TCP_ESTABLISHED;
}

// All of `strangers` come before the first of `admitted`, so what they have sent has been dropped once that is in. The
// port is at `target`.
void expect_admits(const Listener& listener, const std::string& target, const std::vector<std::string>& admitted,
                   const std::vector<std::string>& strangers) {
  const SocketAddress server(target, listener.port());
  const auto call = [&](const std::vector<std::string>& addresses) {
    std::vector<Fd> callers;
    for (const std::string& address : addresses) {
      callers.push_back(bound_to(address));
      if (::connect(callers.back().get(), server.get(), server.size) != 0) {
        EXPECT_EQ(errno, EINPROGRESS) << address;
      }
    }
    return callers;
  };
  const std::vector<Fd> outside = call(strangers);
  const std::vector<Fd> inside = call(admitted);
  for (std::size_t i = 0; i < inside.size(); ++i) {
    EXPECT_TRUE(test::wait_for([&] { return is_connected(inside[i]); })) << admitted[i] << " does not get in";
  }
  std::vector<Fd> accepted;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    Fd one;
    EXPECT_TRUE(test::wait_for([&] { return (one = Fd(::accept(listener.get(), nullptr, nullptr))).valid(); }));
    accepted.push_back(std::move(one));
  }
  EXPECT_LT(::accept(listener.get(), nullptr, nullptr), 0) << "a stranger got in";
  for (std::size_t i = 0; i < outside.size(); ++i) EXPECT_FALSE(is_connected(outside[i])) << strangers[i] << " got in";
}

// Leaves no descriptor.
class PortGuard : public testing::Test {
 protected:
  void TearDown() override { test::expect_nothing_left(before_); }

 private:
  const test::Leftovers before_ = test::Leftovers::now();
};

TEST_F(PortGuard, LetsInTheAdmittedAddressesAlone) {
  for (const bool before_listening : {true, false}) {
    const Listener listener("127.0.0.1");
    if (!before_listening) listener.listen();
    Admitted admitted;
    admitted.addresses = {"127.0.0.2", "10.0.0.1", "fd00::7", "127.0.0.4"};
    const Status status = close_to_strangers(listener.get(), admitted);
    ASSERT_TRUE(status.ok()) << status.message();
    if (before_listening) listener.listen();
    expect_admits(listener, "127.0.0.1", {"127.0.0.2", "127.0.0.4"}, {"127.0.0.1", "127.0.0.3", "127.1.0.2"});
  }
}

TEST_F(PortGuard, LetsInAllLoopbackAddressesIfTold) {
  Admitted admitted;
  admitted.loopback = true;
  for (const char* other : {"10.0.0.1", "fd00::7"}) {
    admitted.addresses.emplace_back(other);
    const Listener listener("127.0.0.1");
    ASSERT_TRUE(close_to_strangers(listener.get(), admitted).ok());
    listener.listen();
    expect_admits(listener, "127.0.0.1", {"127.0.0.1", "127.0.0.2", "127.9.8.7"}, {});
    const Listener listener6("::1");
    ASSERT_TRUE(close_to_strangers(listener6.get(), admitted).ok());
    listener6.listen();
    expect_admits(listener6, "::1", {"::1"}, {});
  }
}

TEST_F(PortGuard, ComparesWholeIpv6Addresses) {
  struct Case {
    std::vector<std::string> addresses;
    bool gets_in;
  };
  const Case cases[] = {
      {{"::1"}, true},
      {{"fd00::1", "1::1", "::1:0:1", "::1"}, true},
      {{"127.0.0.1", "10.0.0.1", "::1"}, true},
      {{"fd00::1"}, false},
      {{"1::1", "0:1::1", "::1:0:0:1", "::2"}, false},
      {{"127.0.0.1"}, false},
      {{"::1:0:0", "::"}, false},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::PrintToString(one.addresses));
    const Listener listener("::1");
    Admitted admitted;
    admitted.addresses = one.addresses;
    ASSERT_TRUE(close_to_strangers(listener.get(), admitted).ok());
    listener.listen();
    const std::vector<std::string> caller{"::1"}, nobody;
    expect_admits(listener, "::1", one.gets_in ? caller : nobody, one.gets_in ? nobody : caller);
  }
}

// UCX listens so.
TEST_F(PortGuard, KnowsTheCallersOfASocketForBothKindsOfAddress) {
  const Listener listener("::");
  Admitted admitted;
  admitted.addresses = {"127.0.0.2", "::1"};
  ASSERT_TRUE(close_to_strangers(listener.get(), admitted).ok());
  listener.listen();
  expect_admits(listener, "127.0.0.1", {"127.0.0.2"}, {"127.0.0.1", "127.0.0.3"});
  expect_admits(listener, "::1", {"::1"}, {});
}

TEST_F(PortGuard, LetsNobodyInWhenNobodyIsAdmitted) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    const Listener listener(address);
    ASSERT_TRUE(close_to_strangers(listener.get(), {}).ok());
    listener.listen();
    expect_admits(listener, address, {}, {address});
  }
}

std::vector<std::string> addresses(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back("10.1." + std::to_string(i / 256) + "." + std::to_string(i % 256));
  return all;
}

TEST_F(PortGuard, HasRoomForHundredsOfMachines) {
  const Listener listener("127.0.0.1");
  Admitted admitted;
  admitted.addresses = addresses(500);
  admitted.addresses.emplace_back("127.0.0.2");
  const Status status = close_to_strangers(listener.get(), admitted);
  ASSERT_TRUE(status.ok()) << status.message();
  listener.listen();
  expect_admits(listener, "127.0.0.1", {"127.0.0.2"}, {"127.0.0.3"});
}

// A filter of before would keep out machines that have been admitted since.
TEST_F(PortGuard, LetsEverybodyInIfItHasNoRoomForAll) {
  const Listener listener("127.0.0.1");
  Admitted admitted;
  admitted.addresses = {"127.0.0.2"};
  ASSERT_TRUE(close_to_strangers(listener.get(), admitted).ok());
  admitted.addresses = addresses(5000);
  EXPECT_EQ(close_to_strangers(listener.get(), admitted).code(), ErrorCode::kUnavailable);
  listener.listen();
  expect_admits(listener, "127.0.0.1", {"127.0.0.2", "127.0.0.3"}, {});
}

TEST_F(PortGuard, SaysWhatItCannotDo) {
  const Listener listener("127.0.0.1");
  Admitted admitted;
  admitted.addresses = addresses(5000);
  const Status many = close_to_strangers(listener.get(), admitted);
  EXPECT_EQ(many.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(many.message(), "cannot close a port to strangers: a filter for 5000 addresses: too many");
  const Status closed = close_to_strangers(-1, {});
  EXPECT_EQ(closed.code(), ErrorCode::kUnavailable);
  EXPECT_NE(closed.message().find("Bad file descriptor"), std::string::npos) << closed.message();
  for (const char* word : {"node7", "10.0.0", "fe80::1%eth0", ""}) {
    admitted.addresses = {"10.0.0.1", word};
    const Status no_address = close_to_strangers(listener.get(), admitted);
    EXPECT_EQ(no_address.code(), ErrorCode::kInvalidArgument) << word;
    EXPECT_EQ(no_address.message(), "expected an IP address, found '" + std::string(word) + "'");
  }
}

}  // namespace
}  // namespace lockstep::comm
