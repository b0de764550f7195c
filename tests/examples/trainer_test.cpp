// The Fashion-MNIST trainer, started as users start it, on a few generated images.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Words = std::vector<std::string>;

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string images(std::uint32_t count) {
  std::string bytes = word(0x803) + word(count) + word(28) + word(28);
  std::uint32_t state = 1;
  for (std::uint32_t i = 0; i < count * 784; ++i)
    bytes += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

std::string labels(std::uint32_t count) {
  std::string bytes = word(0x801) + word(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 7 % 10);
  return bytes;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

void expect_in(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in: " << text;
}

class Trainer : public testing::Test {
 protected:
  Trainer() {
    constexpr std::uint32_t kTrain = 203;  // not a multiple of batch size and ranks
    constexpr std::uint32_t kTest = 41;
    folder_.write("data/train-images-idx3-ubyte", images(kTrain));
    folder_.write("data/train-labels-idx1-ubyte", labels(kTrain));
    folder_.write("data/t10k-images-idx3-ubyte", images(kTest));
    folder_.write("data/t10k-labels-idx1-ubyte", labels(kTest));
  }

  std::string path(const std::string& name) const { return folder_.path(name); }

  Words alone(const Words& options) const {
    Words words{LOCKSTEP_TRAINER, "--batch-size", "32"};
    if (std::find(options.begin(), options.end(), "--data") == options.end()) {
      words.insert(words.end(), {"--data", path("data")});
    }
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }

  // Under `lockstep run`. The ranks ignore its SIGTERM after the first failure, so that each prints its own error.
  Finished train(int ranks, const Words& options) const {
    Words words{LOCKSTEP_PROGRAM,
                "run",
                "--nproc-per-node",
                std::to_string(ranks),
                "--grace",
                "60",
                "sh",
                "-c",
                "trap '' TERM; exec \"$@\"",
                "sh"};
    const Words trainer = alone(options);
    words.insert(words.end(), trainer.begin(), trainer.end());
    return Process(words).finish();
  }

  void expect_error_on_both_ranks(const Words& options, const Words& parts) const {
    const Finished end = train(2, options);
    EXPECT_EQ(end.exit_code, 1) << end.err;
    for (const char* rank : {"[rank 0]: ", "[rank 1]: "}) {
      const std::size_t start = end.err.find(std::string(rank) + "fashion_mnist: ");
      ASSERT_NE(start, std::string::npos) << rank << "printed nothing in: " << end.err;
      expect_in(end.err.substr(start, end.err.find('\n', start) - start), parts);
    }
    expect_in(end.err, {"failed first: exit code 1"});
  }

  const ScratchFolder folder_;
};

class TrainerMulti : public Trainer, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainerMulti, testing::Values(1, 2));

TEST_P(TrainerMulti, ResumedRunHasTheSameBitsAsAnUninterruptedOne) {
  const Finished whole = train(GetParam(), {"--epochs", "3", "--checkpoint-dir", path("whole")});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(count_of(whole.out, " s, train loss "), 3U) << whole.out;
  expect_in(whole.out, {"epoch 1/3: ", "epoch 3/3: ", ", test accuracy "});
  EXPECT_EQ(count_of(whole.out, "\r"), 0U) << "a progress bar without a terminal";

  const Finished first = train(GetParam(), {"--epochs", "1", "--checkpoint-dir", path("parts")});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Finished rest = train(GetParam(), {"--epochs", "3", "--checkpoint-dir", path("parts"), "--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(count_of(rest.out, " s, train loss "), 2U) << rest.out;
  for (const char* file : {"step-000000000.ckpt", "step-000000001.ckpt", "step-000000002.ckpt"}) {
    const std::string bytes = read_file(folder_.path() / "whole" / file);
    EXPECT_FALSE(bytes.empty()) << file;
    EXPECT_TRUE(bytes == read_file(folder_.path() / "parts" / file)) << file << " differs";
  }
}

TEST_F(Trainer, ShowsAProgressBarOnATerminal) {
  const Fd terminal(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid() && grantpt(terminal.get()) == 0 && unlockpt(terminal.get()) == 0);
  Fd other_end(open(ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(other_end.valid());
  Process::Settings settings;
  settings.stdout_fd = other_end.get();
  const Finished end = Process(alone({"--epochs", "1"}), settings).finish();
  ASSERT_EQ(end.exit_code, 0) << end.err;
  other_end.reset();  // else reading does not end after the last byte
  std::string shown;
  char buffer[4096];
  for (ssize_t size = 0; (size = read(terminal.get(), buffer, sizeof buffer)) > 0;) shown.append(buffer, size);
  // How often the bar is drawn between its two ends depends on the machine.
  expect_in(shown, {"train 1/1", "0/7", "7/7", "loss ", "epoch 1/1: "});
}

TEST_F(Trainer, WrongArgumentsAreNamed) {
  const Finished unknown = run_program(alone({"--epoch", "3"}));
  EXPECT_NE(unknown.exit_code, 0);
  expect_in(unknown.err, {"--epoch"});
  const Finished nowhere = run_program(alone({"--resume"}));
  EXPECT_NE(nowhere.exit_code, 0);
  expect_in(nowhere.err, {"--resume", "--checkpoint-dir"});
}

class TrainerFault : public Trainer {};

TEST_F(TrainerFault, MissingDataIsNamedOnEveryRank) {
  expect_error_on_both_ranks({"--data", path("nowhere")},
                             {"train-images-idx3-ubyte", path("nowhere"), "Put the MNIST"});
}

TEST_F(TrainerFault, TruncatedDataIsNamedOnEveryRank) {
  const std::string whole = images(203);
  folder_.write("data/train-images-idx3-ubyte", whole.substr(0, whole.size() / 2));
  expect_error_on_both_ranks({}, {path("data/train-images-idx3-ubyte"), "truncated", "203 x 28 x 28"});
}

TEST_F(TrainerFault, DataOfAnotherKindIsNamedOnEveryRank) {
  folder_.write("data/t10k-images-idx3-ubyte", labels(41));
  expect_error_on_both_ranks({}, {path("data/t10k-images-idx3-ubyte"), "wrong magic number", "expected 00 00 08 03"});
}

TEST_F(TrainerFault, UnwritableCheckpointFolderIsNamedOnEveryRank) {
  folder_.write("file", "in the way");
  expect_error_on_both_ranks({"--checkpoint-dir", path("file/folder")}, {"checkpoint folder", path("file/folder")});
}

TEST_F(TrainerFault, DamagedCheckpointsAreNamedOnEveryRank) {
  folder_.write("saved/step-000000003.ckpt", "no checkpoint at all");
  expect_error_on_both_ranks({"--checkpoint-dir", path("saved"), "--resume"}, {path("saved")});
}

// Only rank 0 writes. Its failure reaches the other rank.
TEST_F(TrainerFault, FailureOfOneRankReachesTheOther) {
  folder_.write("file", "in the way");
  const Finished end = train(2, {"--epochs", "3", "--log", path("file/log")});
  EXPECT_EQ(end.exit_code, 1);
  expect_in(end.err, {"[rank 0]: fashion_mnist: ", path("file/log"),
                      "[rank 1]: fashion_mnist: ", "rank 0 failed first: exit code 1"});
}

}  // namespace
}  // namespace lockstep::test
