// The promises of every store, tested with each of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/limits.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Makes one client after another of the same values.
struct Backend {
  virtual ~Backend() = default;
  virtual Result<std::shared_ptr<Store>> client() = 0;
};

struct HashBackend : Backend {
  std::shared_ptr<Store> store = std::make_shared<HashStore>();
  Result<std::shared_ptr<Store>> client() override { return store; }
};

struct PrefixBackend : Backend {
  std::shared_ptr<Store> store = std::make_shared<HashStore>();
  Result<std::shared_ptr<Store>> client() override {
    return std::shared_ptr<Store>(std::make_shared<PrefixStore>("group", store));
  }
};

struct FileBackend : Backend {
  test::ScratchFolder folder;
  Result<std::shared_ptr<Store>> client() override {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, FileStore::open(folder.path("store")));
    return store;
  }
};

struct TcpBackend : Backend {
  std::unique_ptr<TcpStoreServer> server;
  Result<std::shared_ptr<Store>> client() override {
    if (server == nullptr) {
      TcpStoreServerOptions options;
      options.job_key = "conformance tests";
      LOCKSTEP_ASSIGN_OR_RETURN(server, TcpStoreServer::start(std::move(options)));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Store> store,
                              TcpStore::connect({.server = server->endpoint(), .job_key = "conformance tests"},
                                                Deadline::after(seconds(20))));
    return store;
  }
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class StoreConformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    backend_ = GetParam().make();
    store_ = client();
    ASSERT_NE(store_, nullptr);
  }

  std::shared_ptr<Store> client() {
    auto made = backend_->client();
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? made.value() : nullptr;
  }

  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Store> store_;
};

TEST_P(StoreConformance, SetThenGet) {
  ASSERT_TRUE(store_->set("key", "one").ok());
  EXPECT_EQ(store_->get("key", now()).value(), "one");
  ASSERT_TRUE(store_->set("key", "two").ok());
  EXPECT_EQ(client()->get("key", now()).value(), "two");
}

TEST_P(StoreConformance, ValuesAreBytes) {
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  ASSERT_TRUE(store_->set("binary", bytes).ok());
  ASSERT_TRUE(store_->set("empty", "").ok());
  EXPECT_EQ(client()->get("binary", now()).value(), bytes);
  EXPECT_EQ(client()->get("empty", now()).value(), "");
}

TEST_P(StoreConformance, AddCountsFromZero) {
  EXPECT_EQ(store_->add("count", 5).value(), 5);
  EXPECT_EQ(client()->add("count", -7).value(), -2);
  EXPECT_EQ(store_->get("count", now()).value(), "-2");
  ASSERT_TRUE(store_->set("count", "40").ok());
  EXPECT_EQ(store_->add("count", 2).value(), 42);
}

TEST_P(StoreConformance, AddToTextOrBeyond64BitsIsRefused) {
  ASSERT_TRUE(store_->set("text", "4x").ok());
  const auto sum = store_->add("text", 1);
  EXPECT_EQ(sum.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(sum.status().message().find("text'"), std::string::npos) << sum.status().message();
  ASSERT_TRUE(store_->add("big", INT64_MAX).ok());
  EXPECT_EQ(store_->add("big", 1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->get("big", now()).value(), std::to_string(INT64_MAX));
}

TEST_P(StoreConformance, CompareSetAnswersTheValueAfterwards) {
  EXPECT_EQ(store_->compare_set("key", "other", "x").value(), "");
  EXPECT_FALSE(store_->check(std::vector<std::string>{"key"}).value());
  EXPECT_EQ(store_->compare_set("key", "", "one").value(), "one");
  EXPECT_EQ(client()->compare_set("key", "", "two").value(), "one");
  EXPECT_EQ(store_->compare_set("key", "one", "two").value(), "two");
}

TEST_P(StoreConformance, AppendCreatesAndExtends) {
  ASSERT_TRUE(store_->append("list", "a").ok());
  ASSERT_TRUE(client()->append("list", "bc").ok());
  EXPECT_EQ(store_->get("list", now()).value(), "abc");
}

TEST_P(StoreConformance, CheckDeleteAndNumKeys) {
  EXPECT_EQ(store_->num_keys().value(), 0);
  ASSERT_TRUE(store_->set("a", "1").ok());
  ASSERT_TRUE(store_->set("b", "2").ok());
  EXPECT_EQ(client()->num_keys().value(), 2);
  EXPECT_TRUE(store_->check(std::vector<std::string>{"a", "b"}).value());
  EXPECT_TRUE(store_->delete_key("a").value());
  EXPECT_FALSE(store_->delete_key("a").value());
  EXPECT_FALSE(client()->check(std::vector<std::string>{"a", "b"}).value());
  EXPECT_EQ(store_->num_keys().value(), 1);
}

TEST_P(StoreConformance, NoKeysAreAlwaysThere) {
  EXPECT_TRUE(store_->check({}).value());
  EXPECT_TRUE(store_->wait({}, now()).ok());
  EXPECT_TRUE(store_->multi_get({}, now()).value().empty());
  EXPECT_TRUE(store_->multi_set({}, {}).ok());
}

TEST_P(StoreConformance, TimeoutsNameTheMissingKeysOnly) {
  ASSERT_TRUE(store_->set("present", "1").ok());
  for (const auto timeout : {milliseconds(0), milliseconds(20)}) {
    const auto one = store_->get("absent", Deadline::after(timeout));
    EXPECT_EQ(one.status().code(), ErrorCode::kTimeout);
    EXPECT_NE(one.status().message().find("absent'"), std::string::npos) << one.status().message();
    const auto several = store_->wait(std::vector<std::string>{"present", "left", "right"}, Deadline::after(timeout));
    EXPECT_EQ(several.code(), ErrorCode::kTimeout);
    EXPECT_NE(several.message().find("left'"), std::string::npos) << several.message();
    EXPECT_NE(several.message().find("right'"), std::string::npos) << several.message();
    EXPECT_EQ(several.message().find("present'"), std::string::npos) << several.message();
  }
}

TEST_P(StoreConformance, WaitersWakeWhenTheLastKeyArrives) {
  // The waiters check at other moments in each round.
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> keys;
    for (const char* how : {"set", "added", "appended", "compared", "multi"})
      keys.push_back(how + std::to_string(round));
    std::vector<std::thread> waiters;
    std::vector<Status> statuses(3);
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      // Also through the object that sets the keys: a waiting call must neither block the others nor miss the keys.
      auto store = i == 0 ? store_ : client();
      waiters.emplace_back([&, store, i] { statuses[i] = store->wait(keys, Deadline::never()); });
    }
    EXPECT_TRUE(store_->set(keys[0], "").ok());
    EXPECT_TRUE(store_->add(keys[1], 0).ok());
    EXPECT_TRUE(store_->append(keys[2], "").ok());
    EXPECT_TRUE(store_->compare_set(keys[3], "", "1").ok());
    EXPECT_TRUE(store_->multi_set(std::vector<std::string>{keys[4]}, std::vector<Bytes>{"1"}).ok());
    for (auto& waiter : waiters) waiter.join();
    for (const auto& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(StoreConformance, ManyKeysAtOnce) {
  std::vector<std::string> keys;
  std::vector<Bytes> values;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key" + std::to_string(i));
    values.push_back("value" + std::to_string(i));
  }
  ASSERT_TRUE(store_->multi_set(keys, values).ok());
  EXPECT_EQ(store_->num_keys().value(), 3000);
  EXPECT_TRUE(client()->check(keys).value());
  std::reverse(keys.begin(), keys.end());
  std::reverse(values.begin(), values.end());
  keys.resize(500);  // a store without its own multi_get asks for them one by one
  values.resize(500);
  EXPECT_EQ(client()->multi_get(keys, now()).value(), values);
}

TEST_P(StoreConformance, MultiSetNeedsAValuePerKey) {
  const auto status = store_->multi_set(std::vector<std::string>{"a", "b"}, std::vector<Bytes>{"1"});
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 keys and 1 values"), std::string::npos) << status.message();
}

TEST_P(StoreConformance, LargestValueFitsAndMoreIsRefused) {
  std::string value(kMaxValueBytes, 'x');
  ASSERT_TRUE(store_->set("large", value).ok());
  EXPECT_EQ(client()->get("large", soon()).value().size(), kMaxValueBytes);
  EXPECT_EQ(store_->append("large", "y").code(), ErrorCode::kInvalidArgument);
  value.push_back('x');
  const auto status = store_->set("larger", value);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("larger'"), std::string::npos) << status.message();
  EXPECT_EQ(store_->num_keys().value(), 1);
}

// Also by calls that only read: a rank that waits for a key would miss the error of the rank that sets it.
TEST_P(StoreConformance, LargestKeyFitsAndMoreIsRefusedByEveryCall) {
  std::string key(kMaxKeyBytes - 100, 'k');  // a prefix counts too
  ASSERT_TRUE(store_->set(key, "value").ok());
  EXPECT_EQ(client()->get(key, soon()).value(), "value");
  key.append(101, 'k');
  const std::vector<std::string> keys{"small", key};
  const std::vector<Bytes> values(2);
  for (const Status& status :
       {store_->set(key, ""), store_->get(key, soon()).status(), store_->add(key, 1).status(),
        store_->compare_set(key, "x", "y").status(), store_->append(key, "x"), store_->wait(keys, soon()),
        store_->check(keys).status(), store_->delete_key(key).status(), store_->multi_set(keys, values),
        store_->multi_get(keys, soon()).status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("at most 65536 bytes"), std::string::npos) << status.message();
  }
}

TEST_P(StoreConformance, ThreadsCountTogether) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    auto store = i % 2 == 0 ? store_ : client();
    threads.emplace_back([store] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(store->add("count", 1).ok());
        EXPECT_TRUE(store->append("list", "x").ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->add("count", 0).value(), kThreads * kRounds);
  EXPECT_EQ(store_->get("list", now()).value().size(), kThreads * kRounds);
}

INSTANTIATE_TEST_SUITE_P(All, StoreConformance,
                         testing::Values(Kind{"hash", [] { return std::make_unique<HashBackend>(); }},
                                         Kind{"prefix", [] { return std::make_unique<PrefixBackend>(); }},
                                         Kind{"file", [] { return std::make_unique<FileBackend>(); }},
                                         Kind{"tcp", [] { return std::make_unique<TcpBackend>(); }}),
                         [](const auto& info) { return info.param.name; });

TEST(PrefixStore, KeepsGroupsApart) {
  auto inner = std::make_shared<HashStore>();
  PrefixStore left("left", inner);
  PrefixStore right("right", inner);
  ASSERT_TRUE(left.set("key", "l").ok());
  ASSERT_TRUE(right.set("key", "r").ok());
  EXPECT_EQ(left.get("key", now()).value(), "l");
  EXPECT_EQ(inner->get("right/key", now()).value(), "r");
  EXPECT_EQ(left.num_keys().value(), 2);
}

}  // namespace
}  // namespace lockstep::comm
