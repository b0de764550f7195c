// Where asynchronous saves, readers and writers of a folder meet the end of a program, and one another.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "support/full_disk.h"
#include "support/other_user.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

// Large, so that an asynchronous save is still under way when the program ends.
Checkpoint large_state() {
  Checkpoint state;
  state.add_tensors("all", {{"ones", torch::ones({5'000'000})}});
  return state;
}

[[noreturn]] void end_with_a_static_manager(const std::filesystem::path& folder) {
  static CheckpointManager manager(folder, {.asynchronous = true});
  manager.save(1, large_state());
  manager.wait();  // OpenSSL has begun after the manager was made
  manager.save(2, large_state());
  std::exit(0);
}

[[noreturn]] void end_with_a_local_manager(const std::filesystem::path& folder) {
  CheckpointManager manager(folder, {.asynchronous = true});
  manager.save(1, large_state());
  std::exit(0);
}

[[noreturn]] void end_with_a_save_that_fails(const std::filesystem::path& folder) {
  CheckpointManager manager(folder, {.asynchronous = true});
  const test::FileSizeLimit limit(10000);
  manager.save(1, large_state());
  std::exit(0);
}

struct SavesAtTheEnd {
  std::filesystem::path folder;
  ~SavesAtTheEnd() {
    try {
      CheckpointManager(folder).save(2, large_state());
    } catch (const std::exception& error) {
      std::cerr << error.what();
      std::_Exit(1);
    }
  }
};

[[noreturn]] void save_in_a_static_destructor(const std::filesystem::path& folder) {
  static const SavesAtTheEnd made_before_openssl{folder};
  CheckpointManager(folder).save(1, large_state());
  std::exit(0);
}

class CheckpointEnds : public testing::Test {
 protected:
  std::int64_t latest() const { return CheckpointManager(folder_.path()).load_latest().value().step(); }

  test::ScratchFolder folder_;
};

TEST_F(CheckpointEnds, AStaticManagerLosesNothing) {
  EXPECT_EXIT(end_with_a_static_manager(folder_.path()), testing::ExitedWithCode(0), "^$");
  EXPECT_EQ(latest(), 2);
}

TEST_F(CheckpointEnds, ExitWaitsForTheSaveOfALocalManager) {
  EXPECT_EXIT(end_with_a_local_manager(folder_.path()), testing::ExitedWithCode(0), "^$");
  EXPECT_EQ(latest(), 1);
}

TEST_F(CheckpointEnds, ExitLogsTheErrorOfASave) {
  EXPECT_EXIT(end_with_a_save_that_fails(folder_.path()), testing::ExitedWithCode(0),
              "the last checkpoint was not saved: .*File too large");
}

TEST_F(CheckpointEnds, DestructorsOfStaticObjectsCanSave) {
  EXPECT_EXIT(save_in_a_static_destructor(folder_.path()), testing::ExitedWithCode(0), "^$");
  EXPECT_EQ(latest(), 2);
}

// The folder of another user, or of a file system that is mounted for reading alone.
TEST(CheckpointReaders, NeedNoWritePermission) {
  const test::ScratchFolder folder;
  CheckpointManager(folder.path()).save(3, large_state());
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  test::OtherUser other([&]() -> std::string {
    CheckpointManager manager(folder.path());
    if (manager.load_latest().value().step() != 3) return "another step";
    try {
      manager.take_folder();
    } catch (const CheckpointError& error) {
      return error.code() == ErrorCode::kPermission ? error.what() : "another code";
    }
    return "no error";
  });
  const std::string result = other.result();
  EXPECT_NE(result.find(folder.path("")), std::string::npos) << result;
}

// The log's output stands for a writer that goes on between what a reader does.
TEST(CheckpointReaders, FindWhatAWriterHasPutInPlaceOfTheListed) {
  const test::ScratchFolder folder;
  CheckpointManager writer(folder.path(), {.keep_last = 2});
  CheckpointManager reader(folder.path());
  writer.save(1, large_state());
  writer.save(2, large_state());
  std::filesystem::resize_file(writer.path_of(2), 100);
  bool saved = false;
  log::set_output([&](std::string_view) {
    if (!std::exchange(saved, true)) writer.save(3, large_state());  // removes step 1
  });
  const auto found = reader.load_latest();
  log::set_output({});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step(), 3);

  int call = 0;
  const auto gather = [&](const std::vector<std::int64_t>& mine) {
    if (call++ == 0) CheckpointManager(folder.path(), {.keep_last = 1}).save(4, large_state());
    return std::vector{mine, mine};
  };
  EXPECT_EQ(reader.load_latest(gather)->step(), 4);
}

}  // namespace
}  // namespace lockstep::checkpoint
