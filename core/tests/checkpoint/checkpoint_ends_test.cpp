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

#include "checkpoint/manager/writer_lock.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "support/expect_error.h"
#include "support/forked.h"
#include "support/full_disk.h"
#include "support/other_user.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

Checkpoint ones_of(std::int64_t elements) {
  Checkpoint state;
  state.add_tensors("all", {{"ones", torch::ones({elements})}});
  return state;
}

// Large, so that an asynchronous save is still under way when the program ends.
Checkpoint large_state() {
  return ones_of(5'000'000);
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

[[noreturn]] void save_in_a_handler_of_exit(const std::filesystem::path& folder) {
  // Neither is destroyed, so the first one's save is known when exit() waits for the second one's.
  static CheckpointManager& first = *new CheckpointManager(folder, {.asynchronous = true});
  static CheckpointManager& second = *new CheckpointManager(folder / "second", {.asynchronous = true});
  std::atexit([] { second.save(2, large_state()); });  // runs after what the first save registers
  first.save(1, large_state());
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

TEST_F(CheckpointEnds, ExitWaitsForTheSaveOfAHandler) {
  EXPECT_EXIT(save_in_a_handler_of_exit(folder_.path()), testing::ExitedWithCode(0), "^$");
  EXPECT_EQ(latest(), 1);
  EXPECT_EQ(CheckpointManager(folder_.path() / "second").load_latest().value().step(), 2);
}

TEST(CheckpointWriters, OfOneProcessTakeTurns) {
  const test::ScratchFolder folder;
  const CheckpointManagerOptions options{.keep_last = 100, .asynchronous = true};
  CheckpointManager first(folder.path(), options);
  CheckpointManager second(folder.path(), options);
  CheckpointManager third(folder.path(), {.keep_last = 100});
  std::vector<std::int64_t> saved;
  testing::internal::CaptureStderr();
  for (std::int64_t step = 0; step < 30; ++step) {
    saved.push_back(step);
    if (step % 3 == 0) first.save(step, ones_of(300'000));  // is overtaken by what follows, unless that waits
    if (step % 3 == 1) second.save(step, ones_of(10));
    if (step % 3 == 2) third.save(step, ones_of(10));
  }
  first.wait();
  second.wait();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // nothing is set aside
  EXPECT_EQ(third.steps(), saved);
}

// Whether another process may write to the folder.
ErrorCode code_in_another_process(const std::filesystem::path& folder) {
  return static_cast<ErrorCode>(test::in_fork([&] {
    try {
      CheckpointManager(folder).take_folder();
      return static_cast<int>(ErrorCode::kOk);
    } catch (const CheckpointError& error) {
      return static_cast<int>(error.code());
    }
  }));
}

// The file of the lock leaves with the folder, or somebody has removed it.
TEST(CheckpointWriters, TakeAReplacedFolderAnew) {
  const test::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "runs";
  CheckpointManager manager(folder);
  manager.save(1, ones_of(10));
  std::filesystem::rename(folder, scratch.path() / "moved");
  std::filesystem::create_directory(folder);
  manager.save(2, ones_of(10));
  EXPECT_EQ(code_in_another_process(folder), ErrorCode::kUnavailable);
  std::filesystem::remove(folder / ".writer");
  CheckpointManager other(folder);
  other.save(3, ones_of(10));
  manager.save(4, ones_of(10));
  EXPECT_EQ(code_in_another_process(folder), ErrorCode::kUnavailable);
  EXPECT_EQ(manager.steps(), (std::vector<std::int64_t>{2, 3, 4}));
}

// Another training's folder is there when the save ends.
TEST(CheckpointWriters, LeaveAFolderAloneThatHasComeAmidASave) {
  const test::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "runs";
  const std::filesystem::path others = scratch.path() / "others";
  for (const int step : {1, 2, 9}) CheckpointManager(others, {.keep_last = 9}).save(step, ones_of(10));
  CheckpointManager manager(folder, {.keep_last = 1, .asynchronous = true});
  auto other_save = WriterLock::take(folder).value()->next_turn();
  manager.save(5, ones_of(10));  // waits for its turn
  std::filesystem::rename(folder, scratch.path() / "moved");
  std::filesystem::rename(others, folder);
  other_save.reset();
  test::expect_error<CheckpointError>(ErrorCode::kUnavailable, {"has been replaced or removed"},
                                      [&] { manager.wait(); });
  EXPECT_EQ(manager.steps(), (std::vector<std::int64_t>{1, 2, 9}));
}

TEST(CheckpointWriters, KeepTheFolderOfARelativePath) {
  const test::ScratchFolder scratch;
  std::filesystem::create_directories(scratch.path() / "elsewhere");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  CheckpointManager manager("runs");
  std::filesystem::current_path(scratch.path() / "elsewhere");
  manager.save(1, ones_of(10));
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::exists(scratch.path() / "runs" / "step-000000001.ckpt"));
}

// Each judges the lock by its own name of the folder.
TEST(CheckpointWriters, OfALinkMoveWithIt) {
  const test::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "2026";
  const std::filesystem::path next = scratch.path() / "2027";
  const std::filesystem::path link = scratch.path() / "current";
  std::filesystem::create_directory(next);
  {
    CheckpointManager direct(folder);
    std::filesystem::create_directory_symlink(folder, link);
    CheckpointManager by_link(link);
    by_link.take_folder();
    direct.save(1, ones_of(10));
    std::filesystem::remove(link);
    std::filesystem::create_directory_symlink(next, link);
    direct.save(2, ones_of(10));
    EXPECT_EQ(code_in_another_process(folder), ErrorCode::kUnavailable);
    EXPECT_EQ(code_in_another_process(next), ErrorCode::kOk);
    by_link.save(3, ones_of(10));
    EXPECT_EQ(code_in_another_process(next), ErrorCode::kUnavailable);
    EXPECT_EQ(direct.steps(), (std::vector<std::int64_t>{1, 2}));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / ".writer"));
  EXPECT_FALSE(std::filesystem::exists(next / ".writer"));
}

// A link to itself stands for a file server that does not answer.
TEST(CheckpointWriters, KeepAFolderThatCannotBeSeenForAMoment) {
  const test::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "runs";
  const std::filesystem::path moved = scratch.path() / "moved";
  CheckpointManager manager(folder);
  manager.take_folder();
  std::filesystem::rename(folder, moved);
  std::filesystem::create_symlink("runs", folder);
  EXPECT_NO_THROW(manager.take_folder());
  std::filesystem::remove(folder);
  std::filesystem::rename(moved, folder);
  manager.save(1, ones_of(10));
  EXPECT_EQ(code_in_another_process(folder), ErrorCode::kUnavailable);
}

// By managers that had the folder before, and by one that takes it then.
TEST(CheckpointWriters, WaitForSavesUnderAnEarlierLock) {
  const test::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path() / "runs";
  const CheckpointManagerOptions options{.keep_last = 100, .asynchronous = true};
  CheckpointManager first(folder, options);
  CheckpointManager second(folder, {.keep_last = 100});
  second.take_folder();
  std::vector<std::int64_t> saved;
  testing::internal::CaptureStderr();
  for (std::int64_t step = 0; step < 20; step += 2) {
    first.save(step, ones_of(300'000));
    std::filesystem::remove(folder / ".writer");
    if (step % 4 == 0) second.save(step + 1, ones_of(10));
    if (step % 4 == 2) CheckpointManager(folder, {.keep_last = 100}).save(step + 1, ones_of(10));
    first.wait();
    saved.insert(saved.end(), {step, step + 1});
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");  // nothing is set aside
  EXPECT_EQ(first.steps(), saved);
}

TEST(CheckpointWriters, SetAsideWhatIsBeingSaved) {
  const test::ScratchFolder folder;
  CheckpointManager manager(folder.path(), {.asynchronous = true});
  manager.save(2, ones_of(10));
  manager.save(1, large_state());  // sets step 2 aside in its thread
  std::filesystem::remove(folder.path(".writer"));
  const std::filesystem::path aside = manager.set_aside({1});
  EXPECT_EQ(aside.filename(), "earlier-2");
  EXPECT_TRUE(std::filesystem::exists(aside / manager.path_of(1).filename()));
  EXPECT_EQ(code_in_another_process(folder.path()), ErrorCode::kUnavailable);
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
