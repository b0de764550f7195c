// The TCP store beyond what all stores have in common: keys, limits, lost servers.
#include "lockstep/store/tcp_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "store/deadlines.h"
#include "store/tcp/handshake.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/socket.h"
#include "store/tcp/wire.h"
#include "store/tcp_servers.h"
#include "support/held_port.h"
#include "support/process.h"
#include "support/thread_limit.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TcpStoreServer, ServesIpv6AndAnInheritedSocket) {
  TcpStoreServerOptions options;
  options.listen_at = {"::1", 0};
  auto server = serve(std::move(options));
  EXPECT_EQ(server->endpoint().text(), "[::1]:" + std::to_string(server->port()));
  EXPECT_TRUE(connect(server->endpoint()).value()->set("key", "1").ok());

  TcpStoreServerOptions inherited;
  inherited.listener = listen_at({"127.0.0.1", 0}).value();
  const auto endpoint = local_endpoint(inherited.listener.get()).value();
  server = serve(std::move(inherited));
  EXPECT_EQ(server->port(), endpoint.port);
  EXPECT_TRUE(connect({"localhost", endpoint.port}).value()->set("key", "1").ok());
}

TEST(TcpStoreServer, ServesTheNetworkWithAKey) {
  TcpStoreServerOptions keyed;
  keyed.listen_at = {"0.0.0.0", 0};
  keyed.job_key = "secret of the job";
  const auto server = serve(std::move(keyed));
  EXPECT_TRUE(connect({"127.0.0.1", server->port()}, "secret of the job").ok());
}

TEST(TcpStoreServer, NamesATakenPort) {
  const auto first = serve();
  TcpStoreServerOptions options;
  options.listen_at = first->endpoint();
  const auto second = TcpStoreServer::start(std::move(options));
  EXPECT_EQ(second.status().code(), ErrorCode::kUnavailable);
  EXPECT_NE(second.status().message().find(first->endpoint().text()), std::string::npos) << second.status().message();
  EXPECT_NE(second.status().message().find("MASTER_PORT"), std::string::npos) << second.status().message();
}

// Linux refuses both now and then, about once in 10000 times, where neither tries again.
TEST(TcpStoreServer, OneOfTwoThatListenAtTheSameMomentGetsThePort) {
  for (int round = 0; round < 5000; ++round) {
    const test::HeldPort port;
    std::atomic<int> started = 0;
    std::atomic<int> ended = 0;
    const auto listens = [&] {
      for (++started; started < 2;) std::this_thread::yield();
      const auto socket = listen_at({"127.0.0.1", port.number()});
      for (++ended; ended < 2;) std::this_thread::yield();
      return socket.ok();
    };
    bool other = false;
    std::thread thread([&] { other = listens(); });
    const bool own = listens();
    thread.join();
    ASSERT_NE(own, other) << "round " << round;
  }
}

TEST(TcpStoreServer, NamesAForeignAddress) {
  TcpStoreServerOptions options;
  options.listen_at = {"192.0.2.1", 0};  // reserved for documentation: nobody's
  options.job_key = "secret of the job";
  const auto server = TcpStoreServer::start(std::move(options));
  EXPECT_EQ(server.status().code(), ErrorCode::kUnavailable);
  EXPECT_NE(server.status().message().find("not one of this machine's"), std::string::npos)
      << server.status().message();
}

TEST(TcpStoreServer, KnowsWhenItsClientsHaveLeft) {
  const auto server = serve();
  auto left = connect(server->endpoint()).value();
  auto right = connect(server->endpoint()).value();
  EXPECT_EQ(server->num_clients(), 2U);
  EXPECT_FALSE(server->wait_until_idle(Deadline::after(milliseconds(5))));
  left->close();
  EXPECT_EQ(left->set("key", "1").code(), ErrorCode::kUnavailable);
  right.reset();
  EXPECT_TRUE(server->wait_until_idle(soon()));
  EXPECT_EQ(server->num_clients(), 0U);
}

TEST(TcpStore, WrongOrMissingKeyIsRefusedAtOnce) {
  const auto keyed = serve_with_key("the right secret");
  const auto open = serve();
  struct {
    Endpoint server;
    std::string key, mention;
  } const cases[] = {{keyed->endpoint(), "the wrong secret", "another job key"},
                     {keyed->endpoint(), "", "this process has none"},
                     {open->endpoint(), "some other secret", "has no job key"}};
  for (const auto& test : cases) {
    const auto store = connect(test.server, test.key);
    EXPECT_EQ(store.status().code(), ErrorCode::kPermission);
    EXPECT_NE(store.status().message().find(test.mention), std::string::npos) << store.status().message();
    EXPECT_NE(store.status().message().find("LOCKSTEP_JOB_KEY"), std::string::npos) << store.status().message();
  }
  EXPECT_TRUE(connect(keyed->endpoint(), "the right secret").value()->set("key", "1").ok());
}

TEST(TcpStore, ShortKeysAreRefusedOnBothSides) {
  TcpStoreServerOptions options;
  options.job_key = "15 letters only";
  for (const Status& status :
       {TcpStoreServer::start(std::move(options)).status(), connect(serve()->endpoint(), "15 letters only").status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find("LOCKSTEP_JOB_KEY"), std::string::npos) << status.message();
  }
}

// Passes everything on between a client and the store at `server`, in both directions, until either ends. Appends it to
// `recorded`.
void relay(const Fd& listener, const Endpoint& server, std::string* recorded = nullptr) {
  ASSERT_EQ(::fcntl(listener.get(), F_SETFL, 0), 0);
  const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const Fd store = connect_to(server, soon()).value();
  std::array<pollfd, 2> ends{{{client.get(), POLLIN, 0}, {store.get(), POLLIN, 0}}};
  while (::poll(ends.data(), ends.size(), 20'000) > 0) {
    for (int from = 0; from < 2; ++from) {
      if (ends[from].revents == 0) continue;
      std::array<char, 4096> bytes;
      const ssize_t count = ::recv(ends[from].fd, bytes.data(), bytes.size(), 0);
      if (count > 0 && recorded != nullptr) recorded->append(bytes.data(), static_cast<std::size_t>(count));
      if (count <= 0 || !send_all(ends[1 - from].fd, {bytes.data(), static_cast<std::size_t>(count)}, soon()).ok())
        return;
    }
  }
}

// With a job key, and with the key that a store gives to its user's processes.
TEST(TcpStore, IsNotReachedThroughAProgramThatPassesEverythingOn) {
  for (const std::string& key : {std::string("the right secret"), std::string()}) {
    const auto server = key.empty() ? serve() : serve_with_key(key);
    const Fd listener = listen_at({"127.0.0.1", 0}).value();
    std::thread between(relay, std::cref(listener), server->endpoint(), nullptr);
    const Status status = connect(local_endpoint(listener.get()).value(), key).status();
    EXPECT_EQ(status.code(), ErrorCode::kPermission) << key;
    EXPECT_NE(status.message().find("translates addresses"), std::string::npos) << status.message();
    between.join();
    EXPECT_EQ(server->num_clients(), 0U);
  }
}

// As behind a service of Kubernetes: the store knows the address under which its clients reach it. Whoever passes the
// bytes on reads neither key nor value. Takes milliseconds.
TEST(TcpStore, IsReachedThroughATranslatedAddressThatItKnowsAndTellsNothingOnTheWay) {
  const std::string job_key = "the secret of this job";
  const Fd listener = listen_at({"127.0.0.1", 0}).value();
  TcpStoreServerOptions options;
  options.job_key = job_key;
  options.reached_at = local_endpoint(listener.get()).value();
  const auto server = TcpStoreServer::start(std::move(options)).value();
  std::string recorded;
  std::thread between(relay, std::cref(listener), server->endpoint(), &recorded);
  const auto store = connect(local_endpoint(listener.get()).value(), job_key).value();
  EXPECT_TRUE(store->set("name of a key", "text of a value").ok());
  EXPECT_EQ(store->get("name of a key", soon()).value(), "text of a value");
  EXPECT_EQ(store->push("name of a list", std::string(100'000, 'v')).value(), 1);
  store->close();
  between.join();
  EXPECT_GT(recorded.size(), 100'000U);
  for (const std::string& secret :
       {job_key, std::string("name of a"), std::string("text of a value"), std::string(8, 'v')}) {
    EXPECT_EQ(recorded.find(secret), std::string::npos) << secret;
  }
}

// As while strangers flood the store, and it closes most connections before it knows whose they are.
TEST(TcpStoreFault, ACallGoesOnConnectingWhileTheStoreListens) {
  const std::string key = "the secret of this job";
  const Fd listener = listen_at({"127.0.0.1", 0}).value();
  TcpStoreServerOptions options;
  options.job_key = key;
  options.reached_at = local_endpoint(listener.get()).value();
  const auto server = serve(std::move(options));
  std::thread first(relay, std::cref(listener), server->endpoint(), nullptr);
  const auto store = connect(local_endpoint(listener.get()).value(), key).value();
  std::thread later([&] {
    for (int i = 0; i < 5; ++i) Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    relay(listener, server->endpoint());
  });
  const auto other = connect(server->endpoint(), key).value();
  std::vector<std::future<Result<Bytes>>> waiting;  // each needs a connection
  for (int i = 0; i < 2; ++i)
    waiting.push_back(std::async(std::launch::async, [&] { return store->get("key", soon()); }));
  EXPECT_TRUE(test::wait_for([&] { return server->num_clients() == 3; }));
  EXPECT_TRUE(other->set("key", "1").ok());
  for (auto& one : waiting) EXPECT_EQ(one.get().value(), "1");
  store->close();
  first.join();
  later.join();
}

// As a proxy, or a tunnel, whose store is gone.
TEST(TcpStoreFault, ACallEndsWhereAProgramClosesConnectionsInTheStoresPlace) {
  const std::string key = "the secret of this job";
  const Fd listener = listen_at({"127.0.0.1", 0}).value();
  TcpStoreServerOptions options;
  options.job_key = key;
  options.reached_at = local_endpoint(listener.get()).value();
  auto server = serve(std::move(options));
  std::thread first(relay, std::cref(listener), server->endpoint(), nullptr);
  TcpStoreOptions patient{.server = local_endpoint(listener.get()).value(), .job_key = key};
  patient.request_timeout = std::chrono::milliseconds(300);
  const auto store = TcpStore::connect(std::move(patient), soon()).value();
  server.reset();
  first.join();
  EXPECT_EQ(store->get("key", Deadline::never()).status().code(), ErrorCode::kUnavailable);  // on the idle connection
  std::thread closer([&] {
    while (Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid()) {
    }
  });
  const Status status = store->get("key", Deadline::never()).status();
  ::shutdown(listener.get(), SHUT_RDWR);
  closer.join();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find("accepts connections and closes them"), std::string::npos) << status.message();
}

TEST(TcpStore, APlaceIsTheSameOnBothSidesAlone) {
  EXPECT_EQ(place_of({"::ffff:10.0.0.7", 29500}), place_of({"10.0.0.7", 29500}));
  EXPECT_EQ(place_of({"fe80::1%eth0", 29500}), place_of({"fe80::1", 29500}));
  EXPECT_EQ(place_of({"127.0.0.1", 29500}), place_of({"127.0.0.1", 29500}));
  EXPECT_NE(place_of({"10.0.0.7", 29500}), place_of({"10.0.0.7", 29501}));
  EXPECT_NE(place_of({"10.0.0.7", 29500}), place_of({"10.0.0.8", 29500}));
}

// Impostors: one with another key, and one that asks for a key that the client does not have.
TEST(TcpStore, AServerMustKnowTheKeyToo) {
  for (const std::string& key : {std::string("secret of the job"), std::string()}) {
    const Fd listener = listen_at({"127.0.0.1", 0}).value();
    const auto endpoint = local_endpoint(listener.get()).value();
    auto store = std::async(std::launch::async, [&] { return connect(endpoint, key); });
    ASSERT_EQ(::fcntl(listener.get(), F_SETFL, 0), 0);
    Fd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    EXPECT_TRUE(send_all(peer.get(), handshake::to_bytes({handshake::KeySource::kJob}), soon()).ok());
    const std::string guess = key.empty() ? "" : "secret of nobody";
    SecureSocket impostor = SecureSocket::server(std::move(peer), guess, {place_of(endpoint)}, {}).value();
    EXPECT_FALSE(impostor.shake_hands(soon()).ok());
    impostor = SecureSocket();
    EXPECT_EQ(store.get().status().code(), ErrorCode::kPermission);
  }
}

// Another program, the store of an earlier Lockstep, and a program that begins as a store of ours and knows no TLS.
TEST(TcpStore, AForeignProgramIsNamedAtOnce) {
  struct {
    std::string says;
    ErrorCode code;
    std::string mention;
  } const cases[] = {
      {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", ErrorCode::kCorrupt, "another program answers"},
      {"LKSTORE2" + std::string(80, 'x'), ErrorCode::kUnsupported, "another release of Lockstep (it says LKSTORE2"},
      {handshake::to_bytes({handshake::KeySource::kJob}) + std::string(80, 'x'), ErrorCode::kCorrupt,
       "not those of TLS"}};
  for (const auto& test : cases) {
    const Fd listener = listen_at({"127.0.0.1", 0}).value();
    const auto endpoint = local_endpoint(listener.get()).value();
    auto store = std::async(std::launch::async, [&] { return connect(endpoint, "secret of the job"); });
    ASSERT_EQ(::fcntl(listener.get(), F_SETFL, 0), 0);
    const Fd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(send_all(peer.get(), test.says, soon()).ok());
    const auto status = store.get().status();
    EXPECT_EQ(status.code(), test.code);
    EXPECT_NE(status.message().find(endpoint.text()), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(test.mention), std::string::npos) << status.message();
  }
}

TEST(TcpStore, SaysWhatItTriedWhenNobodyListens) {
  const test::HeldPort port;
  const Endpoint endpoint{"127.0.0.1", port.number()};
  const auto store = connect(endpoint, "", Deadline::after(seconds(1)));
  EXPECT_EQ(store.status().code(), ErrorCode::kUnavailable);
  for (const auto& mention : {endpoint.text(), std::string("attempts"), std::string("Connection refused")}) {
    EXPECT_NE(store.status().message().find(mention), std::string::npos) << store.status().message();
  }
}

TEST(TcpStore, WaitsForAServerThatStartsLater) {
  const test::HeldPort port;
  const Endpoint endpoint{"127.0.0.1", port.number()};
  auto store = std::async(std::launch::async, [&] { return connect(endpoint); });
  TcpStoreServerOptions options;
  options.listen_at = endpoint;
  const auto server = serve(std::move(options));
  EXPECT_TRUE(store.get().ok());
}

TEST(TcpStoreFault, ALostServerEndsEveryCallAtOnce) {
  auto server = serve();
  auto store = connect(server->endpoint()).value();
  auto waiting = std::async(std::launch::async, [&] { return store->get("never", Deadline::never()).status(); });
  while (server->num_clients() < 2) ASSERT_TRUE(store->set("poll", "").ok());  // until the waiter has its connection
  const auto address = server->endpoint().text();
  server.reset();
  for (const auto& status : {waiting.get(), store->set("key", "1"), store->add("count", 1).status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_NE(status.message().find(address), std::string::npos) << status.message();
  }
}

// An add there would count from the beginning again.
TEST(TcpStoreFault, AnotherStoreAtTheSameAddressIsNotTakenForTheFirst) {
  const std::string key = "secret of the job";
  auto server = serve_with_key(key);
  const Endpoint endpoint = server->endpoint();
  const auto store = connect(endpoint, key).value();
  EXPECT_EQ(store->add("count", 1).value(), 1);
  server.reset();
  TcpStoreServerOptions again;
  again.listen_at = endpoint;
  again.job_key = key;
  server = serve(std::move(again));
  EXPECT_EQ(store->add("count", 1).status().code(), ErrorCode::kUnavailable);
  const Status second = store->add("count", 1).status();
  EXPECT_EQ(second.code(), ErrorCode::kUnavailable);
  EXPECT_NE(second.message().find("another store"), std::string::npos) << second.message();
  EXPECT_EQ(connect(endpoint, key).value()->num_keys().value(), 0);
}

TEST(TcpStoreFault, ClosingWakesACallUnderWay) {
  const auto server = serve();
  auto store = connect(server->endpoint()).value();
  auto waiting = std::async(std::launch::async, [&] { return store->get("never", Deadline::never()).status(); });
  while (server->num_clients() < 2) ASSERT_TRUE(store->set("poll", "").ok());
  store->close();
  const auto status = waiting.get();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find("has left"), std::string::npos) << status.message();
}

TEST(TcpStoreFault, ManyClientsWaitForOneKey) {
  const auto server = serve();
  std::vector<std::future<Result<Bytes>>> waiters;
  for (int i = 0; i < 32; ++i) {
    waiters.push_back(std::async(std::launch::async, [&]() -> Result<Bytes> {
      LOCKSTEP_ASSIGN_OR_RETURN(auto store, connect(server->endpoint()));
      LOCKSTEP_RETURN_IF_ERROR(store->add("waiting", 1).status());
      return store->get("key", soon());
    }));
  }
  auto store = connect(server->endpoint()).value();
  while (store->add("waiting", 0).value() < 32) std::this_thread::yield();
  ASSERT_TRUE(store->set("key", "go").ok());
  for (auto& waiter : waiters) EXPECT_EQ(waiter.get().value(), "go");
}

TEST(Endpoint, Parses) {
  EXPECT_EQ(parse_endpoint("node7:29500", "x")->text(), "node7:29500");
  EXPECT_EQ(parse_endpoint("[::1]:1", "x")->host, "::1");
  EXPECT_EQ(parse_endpoint("[::1]:1", "x")->text(), "[::1]:1");
  for (const auto* bad : {"", "node", ":1", "::1:1", "[::1]", "[]:1", "node:", "node:x", "node:65536", "node:-1"}) {
    const auto endpoint = parse_endpoint(bad, "LOCKSTEP_STORE");
    EXPECT_EQ(endpoint.status().code(), ErrorCode::kInvalidArgument) << bad;
    EXPECT_NE(endpoint.status().message().find("LOCKSTEP_STORE"), std::string::npos) << endpoint.status().message();
  }
}

[[noreturn]] void serve_without_threads() {
  test::refuse_threads();
  const auto server = TcpStoreServer::start({});
  std::cerr << server.status().message();
  std::_Exit(server.status().code() == ErrorCode::kUnavailable ? 0 : 1);
}

TEST(TcpStoreFault, WithoutAThreadToServeWithIsAnError) {
  EXPECT_EXIT(serve_without_threads(), testing::ExitedWithCode(0), "cannot start a thread for the store");
}

struct AuthenticatesAtTheEnd {
  ~AuthenticatesAtTheEnd() { std::_Exit(handshake::make_key().ok() ? 0 : 1); }
};

[[noreturn]] void authenticate_at_the_end() {
  static const AuthenticatesAtTheEnd made_before_openssl;
  static_cast<void>(handshake::make_key());
  std::exit(2);
}

// A store's thread serves other ranks until its process has ended, and static objects may connect then.
TEST(TcpStoreServer, AuthenticatesAfterExitHasBegun) {
  EXPECT_EXIT(authenticate_at_the_end(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::comm
