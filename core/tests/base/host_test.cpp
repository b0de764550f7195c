#include "base/host.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace lockstep {
namespace {

TEST(Host, NameIsTheSystems) {
  utsname names{};
  ASSERT_EQ(::uname(&names), 0);
  EXPECT_EQ(host_name(), names.nodename);
}

TEST(Host, BootIdIsTheRunningKernels) {
  std::string expected;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> expected;
  auto id = boot_id();
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_EQ(*id, expected);
  EXPECT_EQ(boot_id().value(), expected);
}

// Which addresses this machine has is not known here, but none is that of loopback.
TEST(Host, AddressesAreNotThoseOfLoopback) {
  auto addresses = addresses_of_machine();
  ASSERT_TRUE(addresses.ok()) << addresses.status().message();
  EXPECT_TRUE(std::is_sorted(addresses->begin(), addresses->end()));
  for (const std::string& address : addresses.value()) {
    EXPECT_FALSE(address.empty() || address.starts_with("127.") || address == "::1" || address.starts_with("fe80:"))
        << address;
  }
}

}  // namespace
}  // namespace lockstep
