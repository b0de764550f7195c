#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/host.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using Folders = std::vector<std::string>;

// The folders that limit the memory of a process with these memberships; those of version 1 end in " (1)".
Folders folders_of(const std::string& memberships) {
  const test::ScratchFolder scratch;
  scratch.write("memberships", memberships);
  Folders folders;
  for (const ControlGroup& group : control_groups("memory", scratch.path("memberships"), "/mount"))
    folders.push_back(group.folder + (group.version_1 ? " (1)" : ""));
  return folders;
}

TEST(ControlGroups, AllAboveAGroupLimitItToo) {
  EXPECT_EQ(folders_of("0::/jobs/7/step\n"), (Folders{"/mount/jobs/7/step", "/mount/jobs/7", "/mount/jobs", "/mount"}));
  EXPECT_EQ(folders_of("0::/\n"), Folders{"/mount"});
}

TEST(ControlGroups, VersionOneHasAFolderForEachSetOfControllers) {
  EXPECT_EQ(folders_of("12:cpu,cpuacct:/a\n7:memory:/b\n1:name=systemd:/c\n0::/d\n"),
            (Folders{"/mount/memory/b (1)", "/mount/memory (1)", "/mount/d", "/mount"}));
  EXPECT_EQ(folders_of("7:hugetlb,memory:/\n"), Folders{"/mount/hugetlb,memory (1)"});
  EXPECT_EQ(folders_of("7:memory_of_another_kind:/\n"), Folders{});
}

TEST(ControlGroups, NonsenseIsSkipped) {
  EXPECT_EQ(folders_of(""), Folders{});
  EXPECT_EQ(folders_of("nonsense\n7:memory\n"), Folders{});
  EXPECT_EQ(folders_of("::\n"), Folders{"/mount"});
  EXPECT_TRUE(control_groups("memory", "/no/such/file", "/mount").empty());
}

}  // namespace
}  // namespace lockstep
