// What an executable file says about the hook.
#include "launch/standby/standby.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "launch/job/worker_environment.h"
#include "launch/standby/hook.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::launch {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

TEST(StandbyNote, IsInProgramsWithRanksAlone) {
  link_standby_hook();
  const test::ScratchFolder folder;
  EXPECT_TRUE(has_standby_hook(kThisProgram));
  EXPECT_FALSE(has_standby_hook("/bin/sh"));
  EXPECT_FALSE(has_standby_hook("/"));
  EXPECT_FALSE(has_standby_hook(folder.path("nothing")));
  folder.write("script", std::string("#!/bin/sh\n") + kStandbyNoteOwner);
  EXPECT_FALSE(has_standby_hook(folder.path("script")));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(has_standby_hook(folder.path("pipe")));
}

TEST(StandbyNote, FilesThatAreCutOffOrWrongHaveNone) {
  const test::ScratchFolder folder;
  const std::string whole = test::read_file(kThisProgram).substr(0, std::size_t{64} << 10);
  folder.write("start", whole);
  EXPECT_TRUE(has_standby_hook(folder.path("start")));
  for (const std::size_t size : {0U, 3U, 16U, 64U, 100U, 400U}) {
    folder.write("cut", whole.substr(0, size));
    EXPECT_FALSE(has_standby_hook(folder.path("cut"))) << size;
  }
  // Nothing that stands in the headers may lead outside of the file.
  for (std::size_t at = 16; at < 1024; ++at) {
    std::string wrong = whole.substr(0, 4096);
    wrong[at] = '\xff';
    folder.write("wrong", wrong);
    static_cast<void>(has_standby_hook(folder.path("wrong")));
  }
  std::string other = whole;
  const std::size_t owner = other.find(kStandbyNoteOwner + std::string(4, '\0'));
  ASSERT_NE(owner, std::string::npos);
  other[owner + 12] = 2;
  folder.write("other", other);
  EXPECT_FALSE(has_standby_hook(folder.path("other"))) << "of another version";
}

TEST(StandbyNote, AFileThatWasWrittenAgainIsAnotherProgram) {
  const test::ScratchFolder folder;
  folder.write("a", "1");
  const auto before = program_file(folder.path("a"));
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(program_file(folder.path("a")), before);
  folder.write("a", "12");
  EXPECT_NE(program_file(folder.path("a")), before);
  EXPECT_FALSE(program_file(folder.path("b")).has_value());
}

TEST(StandbyEnvironment, OnlyWhatDiffersIsSent) {
  using Words = std::vector<std::string>;
  const Words before{"A=1", "B=2", "C=3", "EMPTY="};
  EXPECT_EQ(changed_variables(before, before), Words());
  EXPECT_EQ(changed_variables(before, Words{"A=1", "B=x=y", "D=", "EMPTY="}), (Words{"B=x=y", "D=", "C"}));
}

}  // namespace
}  // namespace lockstep::launch
