// Servers of the TCP store, and connections to them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"

namespace lockstep::comm {

inline std::unique_ptr<TcpStoreServer> serve(TcpStoreServerOptions options = {}) {
  auto server = TcpStoreServer::start(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status().message();
  return server.ok() ? std::move(server).value() : nullptr;
}

inline std::unique_ptr<TcpStoreServer> serve_with_key(const std::string& key) {
  TcpStoreServerOptions options;
  options.job_key = key;
  return serve(std::move(options));
}

inline Result<std::shared_ptr<TcpStore>> connect(const Endpoint& server, const std::string& key = "",
                                                 Deadline deadline = soon()) {
  return TcpStore::connect({.server = server, .job_key = key}, deadline);
}

}  // namespace lockstep::comm
