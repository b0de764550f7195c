#include "lockstep/c10d/store_adapter.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/ranks.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;

c10::intrusive_ptr<StoreAdapter> make_store() {
  return c10::make_intrusive<StoreAdapter>(std::make_shared<comm::HashStore>());
}

TEST(StoreAdapter, KeepsValues) {
  const auto store = make_store();
  store->set("color", "red");
  EXPECT_EQ(store->get_to_str("color"), "red");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", 4), 7);
  EXPECT_EQ(store->compareSet("color", "red", "blue"), "blue");
  EXPECT_EQ(store->compareSet("color", "red", "green"), "blue");
  EXPECT_TRUE(store->check({"color", "n"}));
  EXPECT_FALSE(store->check({"color", "missing"}));
  store->append("color", {'!'});
  EXPECT_EQ(store->get_to_str("color"), "blue!");
  EXPECT_TRUE(store->hasExtendedApi());
  store->multiSet({"a", "b"}, {{1, 0, 2}, {}});
  EXPECT_EQ(store->multiGet({"a", "b"}), (std::vector<std::vector<uint8_t>>{{1, 0, 2}, {}}));
  EXPECT_EQ(store->getNumKeys(), 4);
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
}

TEST(StoreAdapter, ServesLibTorchsOwnStores) {
  const auto store = make_store();
  c10d::PrefixStore prefixed("job", store);
  prefixed.set("key", std::vector<uint8_t>{7});
  EXPECT_EQ(store->get("job/key"), std::vector<uint8_t>{7});
  EXPECT_EQ(store->clone()->get("job/key"), std::vector<uint8_t>{7});
}

TEST(StoreAdapter, MissingKeyTimesOutWithItsName) {
  const auto store = make_store();
  store->setTimeout(milliseconds(20));
  EXPECT_EQ(store->clone()->getTimeout(), milliseconds(20));
  expect_error(ErrorCode::kTimeout, {"absent"}, [&] { store->get("absent"); });
  expect_error(ErrorCode::kTimeout, {"absent"}, [&] { store->wait({"absent"}, milliseconds(20)); });
  EXPECT_THROW(store->get("absent"), c10::DistStoreError);
}

}  // namespace
}  // namespace lockstep::test
