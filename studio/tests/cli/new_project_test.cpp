// `lockstep new`. tests/package builds what it makes, and trains.
#include "cli/new_project/new_project.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

Finished lockstep_new(const std::string& folder) {
  return run_program({LOCKSTEP_PROGRAM, "new", folder});
}

TEST(NewProject, MakesAProjectWithItsNameAndPictures) {
  const ScratchFolder scratch;
  const Finished finished = lockstep_new(scratch.path("flowers"));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("cmake --build build"), std::string::npos) << finished.out;
  for (const char* file :
       {"CMakeLists.txt", "config.yaml", "README.md", ".gitignore", "model/net.h", "data/pictures.h",
        "trainer/train.cpp", "scripts/run.sh", "scripts/slurm.sh", "scripts/kubernetes.yaml", "tests/model_test.cpp"}) {
    EXPECT_TRUE(fs::exists(scratch.path("flowers/") + file)) << file;
  }
  EXPECT_NE(read_file(scratch.path("flowers/CMakeLists.txt")).find("project(flowers"), std::string::npos);
  std::size_t pictures = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path("flowers"))) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path()).find("@NAME@"), std::string::npos) << entry.path();
    pictures += entry.path().extension() == ".ppm" ? 1 : 0;
  }
  EXPECT_EQ(pictures, 3U * 32U);
  EXPECT_EQ(fs::file_size(scratch.path("flowers/data/pictures/train/cross/00.ppm")), 13U + 32 * 32 * 3);
  EXPECT_NE(fs::status(scratch.path("flowers/scripts/run.sh")).permissions() & fs::perms::owner_exec, fs::perms::none);
}

// Kubernetes refuses large letters, '_', and '-' at the end.
TEST(NewProject, HasANameForKubernetes) {
  const ScratchFolder scratch;
  EXPECT_EQ(lockstep_new(scratch.path("My_Flowers-")).exit_code, 0);
  const std::string yaml = read_file(scratch.path("My_Flowers-/scripts/kubernetes.yaml"));
  EXPECT_NE(yaml.find("name: my-flowers\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("claimName: my-flowers-runs}"), std::string::npos) << yaml;
  EXPECT_EQ(yaml.find("@LABEL@"), std::string::npos) << yaml;
  EXPECT_EQ(yaml.find("My_"), std::string::npos) << yaml;
}

TEST(NewProject, RefusesFoldersWithSomethingInThem) {
  const ScratchFolder scratch;
  scratch.write("full/file", "mine");
  scratch.write("file", "mine");
  for (const char* name : {"full", "full/", "file"}) {
    const Finished finished = lockstep_new(scratch.path(name));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    EXPECT_NE(finished.err.find("not an empty folder"), std::string::npos) << finished.err;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path("full")), fs::directory_iterator()), 1);
  fs::create_directory(scratch.path("empty"));
  EXPECT_EQ(lockstep_new(scratch.path("empty")).exit_code, 0);
  for (const char* name : {"1st", "two words", "a;b", "..", "é"}) {
    const Finished finished = lockstep_new(scratch.path(name));
    EXPECT_EQ(finished.exit_code, 2) << name;
    EXPECT_FALSE(finished.err.empty());
  }
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "new"}).exit_code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "new", "--help"}).exit_code, 0);
}

// The system finds "missing/../name" only once somebody makes "missing".
TEST(NewProject, APathThroughAFolderThatIsMissingHidesNoProject) {
  const ScratchFolder scratch;
  scratch.write("mine/README.md", "mine");
  scratch.write("templates/README.md", "text");
  for (const char* folder : {"missing/../mine", "missing/deep/../../mine", "mine/../missing/../mine/"}) {
    const Status status = cli::new_project(scratch.path("templates"), scratch.path(folder));
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << folder;
    EXPECT_NE(status.message().find("not an empty folder"), std::string::npos) << status.message();
    EXPECT_EQ(read_file(scratch.path("mine/README.md")), "mine");
  }
  EXPECT_FALSE(fs::exists(scratch.path("missing")));
  EXPECT_TRUE(cli::new_project(scratch.path("templates"), scratch.path("missing/../other")).ok());
  EXPECT_TRUE(cli::new_project(scratch.path("templates"), scratch.path("deep/er/other")).ok());
  EXPECT_EQ(read_file(scratch.path("deep/er/other/README.md")), "text");
}

TEST(NewProject, LeavesNothingAfterAnError) {
  const ScratchFolder scratch;
  scratch.write("templates/a", "text");
  scratch.write("templates/data/pictures", "a file where a folder must be");
  EXPECT_FALSE(cli::new_project(scratch.path("templates"), scratch.path("project")).ok());
  EXPECT_FALSE(fs::exists(scratch.path("project")));
  EXPECT_EQ(cli::new_project(scratch.path("nowhere"), scratch.path("project")).code(), ErrorCode::kNotFound);
}

TEST(NewProject, NamesTheTemplateThatCannotBeReadAndLeavesNothing) {
  const ScratchFolder scratch;
  scratch.write("templates/a", "text");
  scratch.write("templates/scripts/run.sh", "text");
  // The system refuses to follow a link to itself, also for root.
  fs::create_symlink("loop", scratch.path("templates/loop"));
  fs::create_directory(scratch.path("empty"));
  for (const char* folder : {"project", "empty"}) {
    const Status status = cli::new_project(scratch.path("templates"), scratch.path(folder));
    EXPECT_EQ(status.code(), ErrorCode::kIo);
    EXPECT_NE(status.message().find("new: cannot read " + scratch.path("templates/loop") + ": "), std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(fs::exists(scratch.path("project")));
  EXPECT_TRUE(fs::is_empty(scratch.path("empty")));
}

}  // namespace
}  // namespace lockstep::test
