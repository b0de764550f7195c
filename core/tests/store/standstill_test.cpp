// Stores whose server hangs or has no descriptors left: nobody waits for them longer than agreed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/tcp_store.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kKey = "secret of the test";

// A store in a process of its own, with a limit of descriptors.
class ServerProcess {
 public:
  explicit ServerProcess(rlim_t descriptors = 1024) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) serve(ends[1], descriptors);
    ::close(ends[1]);
    const Fd reader(ends[0]);
    EXPECT_EQ(::read(reader.get(), &endpoint_.port, sizeof endpoint_.port), 2);
  }
  ~ServerProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  void freeze() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  }
  void resume() const { ::kill(pid_, SIGCONT); }
  Result<std::shared_ptr<TcpStore>> connect(Deadline deadline = Deadline::after(seconds(20))) const {
    return TcpStore::connect({.server = endpoint_, .job_key = kKey}, deadline);
  }

 private:
  [[noreturn]] static void serve(int pipe, rlim_t descriptors) {
    const rlimit limit{descriptors, descriptors};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    TcpStoreServerOptions options;
    options.job_key = kKey;
    const auto server = TcpStoreServer::start(std::move(options));
    const std::uint16_t port = server.ok() ? server.value()->port() : 0;
    if (::write(pipe, &port, sizeof port) != sizeof port) ::_exit(1);
    while (true) ::pause();
  }

  pid_t pid_ = -1;
  Endpoint endpoint_{"127.0.0.1", 0};
};

// Runs `action` and returns how long it took, in seconds. Bounds are far above the promised times and far below the
// minute that a request to a store may take otherwise.
template <typename Action>
double seconds_of(Action action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

RendezvousOptions as_rank(int rank, int world_size, milliseconds timeout = seconds(20)) {
  RendezvousOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  options.environment = Environment();
  return options;
}

TEST(StandstillFault, WhoLeavesAFrozenServerIsNotKeptAndHasSaidGoodbye) {
  const ServerProcess server;
  auto group = rendezvous(as_rank(0, 1), server.connect().value());
  ASSERT_TRUE(group.ok()) << group.status().message();
  server.freeze();
  Status left;
  EXPECT_LT(seconds_of([&] { left = group->release(); }), 10);
  EXPECT_EQ(left.code(), ErrorCode::kTimeout) << left.message();
  group->store.reset();
  group->session.reset();
  // The server reads that the client has left; otherwise this would be the same rank a second time.
  server.resume();
  auto again = rendezvous(as_rank(0, 1), server.connect().value());
  EXPECT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->release().ok());
}

TEST(StandstillFault, AFrozenServerEndsARendezvousSoonAfterItsTimeout) {
  const ServerProcess server;
  const auto store = server.connect().value();
  auto waiting = std::async(std::launch::async, [&] { return rendezvous(as_rank(0, 2, seconds(1)), store); });
  const auto observer = server.connect().value();
  const std::vector<std::string> joined{"lockstep/default/0/1/members_so_far"};
  ASSERT_TRUE(observer->wait(joined, Deadline::after(seconds(20))).ok());
  server.freeze();
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(waiting.get().status().code(), ErrorCode::kTimeout); }), 30);
}

TEST(StandstillFault, AServerWithoutDescriptorsServesThoseWhoAreThereAndTheOthersLater) {
  const ServerProcess server(14);
  std::vector<std::shared_ptr<TcpStore>> clients;
  Status full;
  while (full.ok() && clients.size() < 20) {
    auto client = server.connect(Deadline::after(seconds(2)));
    full = client.status();
    if (client.ok()) clients.push_back(std::move(client).value());
  }
  EXPECT_EQ(full.code(), ErrorCode::kUnavailable) << full.message();
  // The store has closed the connection to make room, or has not taken it.
  const bool says_where = full.message().find("waiting for the store's greeting") != std::string::npos ||
                          full.message().find("proving the key to the store") != std::string::npos;
  EXPECT_TRUE(says_where) << full.message();
  ASSERT_GE(clients.size(), 2U);
  for (const auto& client : clients) EXPECT_TRUE(client->add("served", 1).ok());
  auto late = std::async(std::launch::async, [&] { return server.connect(); });
  clients.pop_back();
  const auto client = late.get();
  ASSERT_TRUE(client.ok()) << client.status().message();
  EXPECT_EQ(client.value()->add("served", 0).value(), static_cast<std::int64_t>(clients.size()) + 1);
}

// Takes all descriptors that this process may open.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Fd lowest(::dup(0));
    const rlimit limit{static_cast<rlim_t>(lowest.get()), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(StandstillFault, AProcessWithoutDescriptorsIsToldAtOnce) {
  const ServerProcess server;
  const test::ScratchFolder folder;
  const auto client = server.connect().value();
  Status connected, served, opened, used;
  {
    const NoDescriptors none;
    connected = server.connect().status();
    served = TcpStoreServer::start({}).status();
    opened = FileStore::open(folder.path("store")).status();
    used = client->set("key", "value");  // with the connection it has
  }
  for (const Status& status : {connected, served, opened}) {
    EXPECT_EQ(status.code(), ErrorCode::kIo) << status.message();
    EXPECT_NE(status.message().find("Too many open files (this process may have "), std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(used.ok()) << used.message();
  EXPECT_NE(opened.message().find(folder.path("store")), std::string::npos) << opened.message();
}

}  // namespace
}  // namespace lockstep::comm
