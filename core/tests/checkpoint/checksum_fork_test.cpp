// A program forks while the threads of its saves calculate checksums.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "checkpoint/file/file_checksum.h"
#include "lockstep/store/tcp_store.h"
#include "support/forked.h"

namespace lockstep::checkpoint {
namespace {

using std::chrono::seconds;

int encrypts() {
  const auto server = comm::TcpStoreServer::start({});
  if (!server.ok()) return 1;
  return comm::TcpStore::connect({.server = server.value()->endpoint()}, Deadline::after(seconds(20))).ok() ? 0 : 2;
}

// A fork with a copy of a lock that OpenSSL held would wait for it forever.
TEST(ChecksumForks, AForkBesideSavesCanEncrypt) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> saves;
  for (int i = 0; i < 2; ++i) {
    saves.emplace_back([&] {
      while (!stop) EXPECT_EQ(Sha256().digits().size(), kSha256Digits);
    });
  }
  for (int round = 0; round < 40 && !testing::Test::HasFailure(); ++round) EXPECT_EQ(test::in_fork(encrypts), 0);
  stop = true;
}

}  // namespace
}  // namespace lockstep::checkpoint
