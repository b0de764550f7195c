#include "base/host.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

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

}  // namespace
}  // namespace lockstep
