#include "net/network_interface.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

TEST(NetworkInterface, IsFoundByItsAddress) {
  for (const char* address : {"127.0.0.1", "::1", "::ffff:127.0.0.1"}) {
    const auto found = interface_with_address(address);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found.value().name, "lo");
    EXPECT_EQ(found.value().is_ipv6, std::string(address) == "::1");
  }
}

TEST(NetworkInterface, IsFoundByTheWayToAHost) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    const auto found = interface_towards(host);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found.value().name, "lo");
  }
}

TEST(NetworkInterface, ErrorsSayWhichAddressNobodyHas) {
  const Status none = interface_with_address("203.0.113.1").status();  // for documentation (RFC 5737)
  EXPECT_EQ(none.code(), ErrorCode::kNotFound);
  EXPECT_EQ(none.message(), "no network interface of this machine has the address 203.0.113.1");
  const Status name = interface_with_address("localhost").status();  // not a number
  EXPECT_EQ(name.code(), ErrorCode::kNotFound);
  EXPECT_NE(name.message().find("no address for 'localhost'"), std::string::npos) << name.message();
}

}  // namespace
}  // namespace lockstep::comm
