#include "lockstep/checkpoint/checkpoint_manager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <thread>

#include "support/forked.h"
#include "support/full_disk.h"
#include "support/scratch_folder.h"
#include "support/thread_limit.h"

namespace lockstep::checkpoint {
namespace {

using Steps = std::vector<std::int64_t>;

Checkpoint state_of(double value, std::int64_t elements = 1000) {
  torch::nn::Linear layer(1, elements);
  const torch::NoGradGuard no_grad;
  layer->weight.fill_(value);
  Checkpoint state;
  state.add_model(*layer);
  state.set("value", value);
  return state;
}

double weight_of(const Checkpoint& state, std::int64_t elements = 1000) {
  torch::nn::Linear layer(1, elements);
  state.restore_model(*layer);
  EXPECT_TRUE(layer->weight.eq(layer->weight[0]).all().item<bool>());
  return layer->weight[0].item<double>();
}

// Besides the lock of a manager that lives.
std::size_t files_in(const std::filesystem::path& folder) {
  const auto all = std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  return static_cast<std::size_t>(all) - (std::filesystem::exists(folder / ".writer") ? 1 : 0);
}

void damage(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('\x7f');
}

class CheckpointFolders : public testing::Test {
 protected:
  ErrorCode code_of(const std::function<void()>& action) {
    try {
      action();
      return ErrorCode::kOk;
    } catch (const CheckpointError& error) {
      message_ = error.what();
      return error.code();
    }
  }

  test::ScratchFolder scratch_;
  std::filesystem::path folder_ = scratch_.path() / "runs" / "a";
  std::string message_;
};

TEST_F(CheckpointFolders, KeepTheLastAndTheBest) {
  CheckpointManager manager(folder_, {.keep_last = 2});
  EXPECT_FALSE(manager.load_latest());
  EXPECT_FALSE(manager.load_best());
  const std::vector<double> accuracy = {0.1, 0.7, 0.3, 0.7, 0.2, 0.4};
  for (std::int64_t step = 0; step < 6; ++step) {
    manager.save(step, state_of(static_cast<double>(step)), accuracy[static_cast<std::size_t>(step)]);
  }
  EXPECT_EQ(manager.steps(), (Steps{3, 4, 5}));  // the later one of equal metrics
  EXPECT_EQ(files_in(folder_), 3U);
  EXPECT_EQ(weight_of(*manager.load_latest()), 5.0);
  EXPECT_EQ(manager.load_latest()->metric(), 0.4);
  EXPECT_EQ(manager.load_best()->step(), 3);
  EXPECT_EQ(weight_of(manager.load(4)), 4.0);

  // A later program.
  CheckpointManager other(folder_, {.keep_last = 1});
  other.save(6, state_of(6), 0.0);
  EXPECT_EQ(other.steps(), (Steps{3, 6}));
  CheckpointManager losses(folder_, {.keep_last = 1, .best = CheckpointManagerOptions::Best::kLowestMetric});
  losses.save(7, state_of(7), 0.5);
  EXPECT_EQ(losses.steps(), (Steps{6, 7}));
  CheckpointManager none(folder_, {.keep_last = 1, .best = CheckpointManagerOptions::Best::kNotKept});
  none.save(8, state_of(8));
  EXPECT_EQ(none.steps(), (Steps{8}));
}

// Two managers of one program save to one folder, and save a step again.
TEST_F(CheckpointFolders, KeepTheBestOfAllManagers) {
  CheckpointManager manager(folder_, {.keep_last = 1});
  manager.save(1, state_of(1), 0.9);
  {
    CheckpointManager other(folder_, {.keep_last = 9});
    other.save(1, state_of(1), 0.1);
    other.save(2, state_of(2), 0.5);
  }
  manager.save(3, state_of(3), 0.2);
  EXPECT_EQ(manager.steps(), (Steps{2, 3}));
  EXPECT_EQ(manager.load_best()->step(), 2);
}

// A training that went back to step 2 and goes on from there.
TEST_F(CheckpointFolders, HigherStepsAreSetAside) {
  CheckpointManager(folder_, {.keep_last = 2}).save(2, state_of(2));
  CheckpointManager manager(folder_, {.keep_last = 2});
  manager.save(3, state_of(3), 0.9);
  manager.save(4, state_of(4), 0.1);
  EXPECT_EQ(manager.load(3).step(), 3);
  manager.save(3, state_of(30), 0.5);
  manager.save(4, state_of(40), 0.6);
  EXPECT_EQ(manager.steps(), (Steps{3, 4}));
  EXPECT_EQ(weight_of(*manager.load_latest()), 40.0);
  EXPECT_EQ(weight_of(*manager.load_best()), 40.0);
  CheckpointManager aside(folder_ / "earlier-1");
  EXPECT_EQ(aside.steps(), (Steps{4}));
  EXPECT_EQ(weight_of(aside.load(4)), 4.0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "earlier-2"));
  EXPECT_EQ(manager.set_aside({3}), folder_ / "earlier-2");
  EXPECT_EQ(manager.steps(), (Steps{4}));
}

TEST_F(CheckpointFolders, ASaveThatFailsSetsNothingAside) {
  CheckpointManager manager(folder_);
  manager.save(10, state_of(10));
  Checkpoint bad;
  bad.add_tensors("a", {{"b", torch::zeros({2}, torch::kComplexDouble)}});
  EXPECT_EQ(code_of([&] { manager.save(5, bad); }), ErrorCode::kUnsupported);
  EXPECT_EQ(manager.load_latest()->step(), 10);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "earlier-1"));
}

TEST_F(CheckpointFolders, AsynchronousSavesFailAsOthersDo) {
  std::vector<std::string> messages;
  for (const bool asynchronous : {false, true}) {
    CheckpointManager manager(folder_, {.asynchronous = asynchronous});
    Checkpoint bad;
    bad.add_tensors("a", {{"b", torch::Tensor()}});
    EXPECT_EQ(code_of([&] {
                manager.save(1, bad);
                manager.wait();
              }),
              ErrorCode::kUnsupported);
    messages.push_back(message_);
  }
  EXPECT_EQ(messages[0], messages[1]);
}

// As an epoch's state is, before and after its evaluation.
TEST_F(CheckpointFolders, ReadersSeeTheMetricOfAStepThatIsSavedAgain) {
  CheckpointManager writer(folder_);
  CheckpointManager reader(folder_);
  writer.save(1, state_of(1), 0.5);
  writer.save(2, state_of(2));
  EXPECT_EQ(reader.load_best()->step(), 1);
  writer.save(2, state_of(2), 0.7);
  EXPECT_EQ(reader.load_best()->step(), 2);
}

TEST_F(CheckpointFolders, DamagedFilesAreNamedAndPassedOver) {
  CheckpointManager manager(folder_);
  for (std::int64_t step = 1; step <= 3; ++step) manager.save(step, state_of(static_cast<double>(step)));
  damage(manager.path_of(3));
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager.load_latest()->step(), 2);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("step-000000003.ckpt: damaged"), std::string::npos) << log;
  EXPECT_NE(log.find("going back to the good checkpoint"), std::string::npos) << log;
  std::filesystem::resize_file(manager.path_of(2), 100);
  damage(manager.path_of(1));
  EXPECT_EQ(code_of([&] { manager.load_latest(); }), ErrorCode::kCorrupt);
  for (const char* name : {"step-000000001", "step-000000002", "step-000000003"}) {
    EXPECT_NE(message_.find(name), std::string::npos) << message_;
  }
}

void write_header(const std::filesystem::path& path, const std::string& header) {
  const std::uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
}

// For every fault of the newest checkpoint.
TEST_F(CheckpointFolders, EveryKindOfBadFileIsPassedOver) {
  CheckpointManager manager(folder_, {.keep_last = 100});
  manager.save(1, state_of(1));
  const std::string deep(200'000, '[');
  const std::vector<std::pair<const char*, std::function<void(const std::filesystem::path&)>>> kinds{
      {"empty", [](const auto& path) { std::ofstream{path}; }},
      {"a folder", [](const auto& path) { std::filesystem::create_directory(path); }},
      {"a link to nothing", [](const auto& path) { std::filesystem::create_symlink("nowhere", path); }},
      {"a link to itself", [](const auto& path) { std::filesystem::create_symlink(path, path); }},
      {"a newer format", [](const auto& path) { write_header(path, R"({"__metadata__":{"lockstep.format":"2"}})"); }},
      {"nested", [&](const auto& path) { write_header(path, R"({"a":{"dtype":)" + deep); }},
      {"nested well",
       [&](const auto& path) {
         write_header(path, R"({"a":{"dtype":)" + deep + std::string(deep.size(), ']') + "}}");
       }},
      {"more than any memory", [](const auto& path) {
         write_header(path, R"({"a":{"dtype":"U8","shape":[1000000000000000],"data_offsets":[0,1000000000000000]}})");
         std::filesystem::resize_file(path, std::filesystem::file_size(path) + 1'000'000'000'000'000);
       }}};
  for (const auto& [what, make] : kinds) {
    SCOPED_TRACE(what);
    const std::filesystem::path path = manager.path_of(2);
    try {
      make(path);
    } catch (const std::filesystem::filesystem_error&) {
      std::filesystem::resize_file(path, std::filesystem::file_size(path) + (std::uintmax_t{1} << 42));
    }
    testing::internal::CaptureStderr();
    const std::optional<Checkpoint> found = manager.load_latest();
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step(), 1);
    // A file that is removed before it is read is not a bad file.
    const bool gone = std::string(what) == "a link to nothing";
    EXPECT_EQ(log.find("step-000000002.ckpt") == std::string::npos, gone) << log;
    std::filesystem::remove_all(path);
  }
}

[[noreturn]] void save_without_threads(const std::filesystem::path& folder) {
  CheckpointManager manager(folder, {.asynchronous = true});
  test::refuse_threads();
  try {
    manager.save(1, state_of(1));
    std::cerr << "no error";
    std::_Exit(1);
  } catch (const CheckpointError& error) {
    std::cerr << error.what();
    std::_Exit(error.code() == ErrorCode::kUnavailable ? 0 : 1);
  }
}

TEST(CheckpointThreadsFault, WithoutAThreadToSaveWithIsAnError) {
  const test::ScratchFolder folder;
  // The process that saves is another user, who has no threads left.
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  EXPECT_EXIT(save_without_threads(folder.path()), testing::ExitedWithCode(0), "step 1 is not saved.*thread");
}

TEST_F(CheckpointFolders, AsynchronousSavesHaveTheStateOfTheCall) {
  CheckpointManager manager(folder_, {.keep_last = 10, .asynchronous = true});
  torch::nn::Linear layer(1, 100000);
  const torch::NoGradGuard no_grad;
  for (std::int64_t step = 0; step < 5; ++step) {
    layer->weight.fill_(static_cast<double>(step));
    Checkpoint state;
    state.add_model(*layer);
    manager.save(step, state);
    layer->weight.fill_(-1.0);
  }
  manager.wait();
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(weight_of(manager.load(step), 100000), static_cast<double>(step));
  }
}

// The destructor waits for the save.
TEST_F(CheckpointFolders, NoAsynchronousSaveIsLost) {
  { CheckpointManager(folder_, {.asynchronous = true}).save(1, state_of(1)); }
  EXPECT_EQ(CheckpointManager(folder_).load_latest()->step(), 1);
}

// Large, so that the save is under way while the process forks.
TEST_F(CheckpointFolders, AForkDoesNotWaitForTheSaveOfItsParent) {
  auto manager = std::make_unique<CheckpointManager>(folder_, CheckpointManagerOptions{.asynchronous = true});
  manager->save(1, state_of(1, 5'000'000));
  const auto leave = [&](bool wait) {
    if (wait) manager->wait();
    manager.reset();
    return 0;
  };
  const pid_t first = test::fork_to([&] { return leave(/*wait=*/false); });
  const pid_t second = test::fork_to([&] { return leave(/*wait=*/true); });
  EXPECT_EQ(test::end_of(first), 0);
  EXPECT_EQ(test::end_of(second), 0);
  manager->wait();
  EXPECT_EQ(manager->load_latest()->step(), 1);
}

// Two programs that train into one folder.
TEST_F(CheckpointFolders, OneProcessWritesToAFolder) {
  auto manager = std::make_unique<CheckpointManager>(folder_);
  manager->save(1, state_of(1));
  const int other = test::in_fork([&] {
    CheckpointManager second(folder_);
    if (second.load_latest()->step() != 1) return 1;  // all may read
    if (code_of([&] { second.take_folder(); }) != ErrorCode::kUnavailable) return 2;
    const std::string holder = "process " + std::to_string(::getppid()) + " on ";
    if (message_.find(holder) == std::string::npos || message_.find(folder_.native()) == std::string::npos) return 3;
    // The parent's manager is no holder here.
    return code_of([&] { manager->save(2, state_of(2)); }) == ErrorCode::kUnavailable ? 0 : 4;
  });
  EXPECT_EQ(other, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".writer"));
  CheckpointManager same_process(folder_);
  same_process.save(2, state_of(2));
  manager.reset();
  EXPECT_TRUE(std::filesystem::exists(folder_ / ".writer"));
  EXPECT_EQ(test::in_fork([&] {
              return code_of([&] { CheckpointManager(folder_).take_folder(); }) == ErrorCode::kUnavailable ? 0 : 1;
            }),
            0);
}

// A pod's successor on another node has the same host name.
TEST_F(CheckpointFolders, AWriterOfTheSameNameOnAnotherMachineIsWaitedFor) {
  int taken[2];
  ASSERT_EQ(::pipe2(taken, O_CLOEXEC), 0);
  const pid_t writer = test::fork_to([&] {
    CheckpointManager manager(folder_);
    manager.take_folder();
    char host[256] = {};
    ::gethostname(host, sizeof(host) - 1);
    std::ofstream(folder_ / ".writer") << ::getpid() << ' ' << host << " another-boot-id\n";
    if (::write(taken[1], "x", 1) != 1) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // three times the patience with this machine
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(::read(taken[0], &byte, 1), 1);
  CheckpointManager manager(folder_);
  manager.save(1, state_of(1));
  EXPECT_EQ(test::end_of(writer), 0);
  for (const int fd : taken) ::close(fd);
}

// However it ends, and whether or not a fork of it lives on.
TEST_F(CheckpointFolders, AWriterThatHasEndedLeavesTheFolder) {
  int open_until_the_end[2];
  int taken[2];
  ASSERT_EQ(::pipe2(open_until_the_end, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(taken, O_CLOEXEC), 0);
  char byte = 0;
  const pid_t writer = test::fork_to([&] {
    ::close(open_until_the_end[1]);
    CheckpointManager manager(folder_);
    manager.take_folder();
    if (fork() != 0 && ::write(taken[1], "x", 1) != 1) return 1;
    return static_cast<int>(::read(open_until_the_end[0], &byte, 1));
  });
  ASSERT_EQ(::read(taken[0], &byte, 1), 1);
  CheckpointManager manager(folder_);
  EXPECT_EQ(code_of([&] { manager.save(1, state_of(1)); }), ErrorCode::kUnavailable);
  EXPECT_NE(message_.find("process " + std::to_string(writer) + " on "), std::string::npos) << message_;
  ::kill(writer, SIGKILL);
  test::end_of(writer);
  manager.save(1, state_of(1));
  EXPECT_EQ(manager.load_latest()->step(), 1);
  for (const int fd : {open_until_the_end[0], open_until_the_end[1], taken[0], taken[1]}) ::close(fd);
}

TEST_F(CheckpointFolders, AnOrderlyEndLeavesNoLock) {
  { CheckpointManager(folder_).save(1, state_of(1)); }
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".writer"));
  scratch_.write("somebody's", "text");
  std::filesystem::create_symlink(scratch_.path() / "somebody's", folder_ / ".writer");
  EXPECT_NE(code_of([&] { CheckpointManager(folder_).take_folder(); }), ErrorCode::kOk);
  EXPECT_EQ(std::filesystem::file_size(scratch_.path() / "somebody's"), 4U);
}

TEST_F(CheckpointFolders, AFifoInPlaceOfACheckpointIsPassedOver) {
  CheckpointManager manager(folder_, {});
  manager.save(1, state_of(1));
  const std::filesystem::path fifo = folder_ / "step-000000002.ckpt";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(manager.load_latest()->step(), 1);
  EXPECT_EQ(code_of([&] { manager.load(2); }), ErrorCode::kCorrupt);
  EXPECT_EQ(message_, fifo.native() + ": expected a regular file, found a FIFO");
  EXPECT_EQ(code_of([&] { manager.save(2, state_of(2)); }), ErrorCode::kInvalidArgument);
}

// A limit on file sizes simulates a full disk.
TEST_F(CheckpointFolders, AFullDiskCostsNothingThatWasThere) {
  for (const bool asynchronous : {false, true}) {
    CheckpointManager manager(folder_, {.asynchronous = asynchronous});
    manager.save(1, state_of(1));
    manager.wait();
    {
      const test::FileSizeLimit limit(10000);
      const Checkpoint large = state_of(2, 100000);
      EXPECT_EQ(code_of([&] {
                  manager.save(2, large);
                  manager.wait();
                }),
                ErrorCode::kIo);
      EXPECT_NE(message_.find("step-000000002.ckpt.tmp: cannot write"), std::string::npos) << message_;
      EXPECT_NE(message_.find("File too large"), std::string::npos) << message_;
    }
    EXPECT_EQ(files_in(folder_), 1U);
    EXPECT_EQ(weight_of(*manager.load_latest()), 1.0);
    manager.save(3, state_of(3));  // the error was reported once
    manager.wait();
    std::filesystem::remove(manager.path_of(3));
  }
}

TEST_F(CheckpointFolders, AFolderThatCannotBeIsKnownAtOnce) {
  scratch_.write("file", "");
  EXPECT_EQ(code_of([&] { CheckpointManager(scratch_.path() / "file"); }), ErrorCode::kIo);
  EXPECT_NE(message_.find((scratch_.path() / "file").native()), std::string::npos) << message_;
  EXPECT_EQ(code_of([&] { CheckpointManager(scratch_.path() / "file" / "below"); }), ErrorCode::kIo);
  EXPECT_NE(code_of([&] { CheckpointManager("/proc/checkpoints"); }), ErrorCode::kOk);
  EXPECT_EQ(code_of([&] { CheckpointManager(folder_, {.keep_last = 0}); }), ErrorCode::kInvalidArgument);
  CheckpointManager manager(folder_);
  EXPECT_EQ(code_of([&] { manager.save(-1, state_of(1)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { manager.load(7); }), ErrorCode::kNotFound);
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(code_of([&] { manager.save(1, state_of(1)); }), ErrorCode::kNotFound);
}

TEST_F(CheckpointFolders, OtherFilesAreLeftAlone) {
  CheckpointManager manager(folder_, {.keep_last = 1});
  const std::vector<std::string> others = {"notes.txt", "step-x.ckpt", "step-5.ckpt", "other.tmp",
                                           "step-99999999999999999999.ckpt"};
  for (const std::string& name : others) std::ofstream(folder_ / name) << "x";
  std::ofstream(folder_ / "step-000000009.ckpt.tmp") << "of a writer that was killed";
  for (std::int64_t step = 1; step <= 3; ++step) manager.save(step, state_of(1));
  EXPECT_EQ(manager.steps(), (Steps{3}));
  EXPECT_EQ(files_in(folder_), others.size() + 1);
}

// What gather() returns when the other rank has these steps: first those that it sees, then those that it can read.
CheckpointManager::Gather with_other(std::vector<Steps> answers) {
  return [answers = std::move(answers), call = std::size_t{0}](const Steps& mine) mutable {
    return std::vector<Steps>{mine, answers.at(call++)};
  };
}

TEST_F(CheckpointFolders, AllRanksLoadTheSameStep) {
  CheckpointManager manager(folder_, {.keep_last = 5});
  EXPECT_FALSE(manager.load_latest(with_other({{}})));
  for (std::int64_t step = 1; step <= 4; ++step) manager.save(step, state_of(static_cast<double>(step)));
  EXPECT_EQ(manager.load_latest(with_other({{1, 2, 3}, {3}}))->step(), 3);
  EXPECT_EQ(manager.load_latest(with_other({{1, 2, 3, 4}, {}, {3}}))->step(), 3);  // the other cannot read step 4
  damage(manager.path_of(4));
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager.load_latest(with_other({{1, 2, 3, 4}, {4}, {3}}))->step(), 3);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("step-000000004.ckpt"), std::string::npos);
  EXPECT_EQ(code_of([&] { manager.load_latest(with_other({{}})); }), ErrorCode::kCorrupt);
  EXPECT_NE(message_.find("rank 0 sees steps [1, 2, 3, 4], rank 1 sees steps []"), std::string::npos) << message_;
  EXPECT_EQ(code_of([&] { manager.load_latest(with_other({{7}})); }), ErrorCode::kCorrupt);
  std::filesystem::remove_all(folder_);
  bool asked = false;
  EXPECT_EQ(code_of([&] {
              manager.load_latest([&](const Steps& mine) {
                asked = true;
                return std::vector<Steps>{mine, {1}};
              });
            }),
            ErrorCode::kIo);
  EXPECT_TRUE(asked) << "the others would wait";
}

}  // namespace
}  // namespace lockstep::checkpoint
