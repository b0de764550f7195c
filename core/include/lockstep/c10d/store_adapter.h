// Lockstep's stores as c10d::Store, for LibTorch code that wants one (NCCL's process group, for example), and
// LibTorch's stores as comm::Store, for groups that are made from one (Python's torch.distributed).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep {

// Shares the store that it is made from. get and wait block for up to the timeout (c10d's default: 5 minutes), then
// throw lockstep::StoreError, which names the key. As thread-safe as the store, except setTimeout.
class StoreAdapter : public c10d::Store {
 public:
  explicit StoreAdapter(std::shared_ptr<comm::Store> store, std::chrono::milliseconds timeout = kDefaultTimeout);

  const std::shared_ptr<comm::Store>& underlying() const { return store_; }

  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  std::shared_ptr<comm::Store> store_;
};

// The other direction: a store of LibTorch, or of Python, for the engine. For a StoreAdapter, returns the store that it
// was made from. Shares the store; calls block as long as the store's own do. Its exceptions become Status values:
// kTimeout once the deadline has passed, else kUnavailable. append needs a store that has it (TCPStore and HashStore
// do).
std::shared_ptr<comm::Store> wrap_store(c10::intrusive_ptr<c10d::Store> store);

}  // namespace lockstep
