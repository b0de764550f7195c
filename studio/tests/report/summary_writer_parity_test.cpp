// Event files, read back by TensorBoard itself.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/report/summary_writer.h"
#include "support/full_disk.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using test::ScratchFolder;

constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

json read_by_tensorboard(const std::string& folder) {
  test::Process reader({LOCKSTEP_TENSORBOARD_PYTHON, LOCKSTEP_REPORT_SCRIPTS "/read_events.py", folder});
  const test::Finished finished = reader.finish(std::chrono::seconds(100));
  if (finished.exit_code != 0) throw std::runtime_error(finished.err);
  return json::parse(finished.out);
}

SummaryWriter open(const std::string& folder) {
  Result<SummaryWriter> writer = SummaryWriter::open(folder);
  if (!writer.ok()) throw std::runtime_error(writer.status().message());
  return std::move(writer).value();
}

TEST(SummaryWriterParity, TensorBoardReadsEveryValue) {
  const ScratchFolder folder;
  const std::vector<double> numbers = {0.0, -0.0, 1.5, -1e-30, 1e300, kFloatNan, kFloatInfinity, -kFloatInfinity, 0.1};
  const std::vector<std::int64_t> steps = {0,
                                           1,
                                           127,
                                           128,
                                           16384,
                                           std::int64_t{1} << 40,
                                           std::int64_t{1} << 41,
                                           std::int64_t{1} << 42,
                                           std::numeric_limits<std::int64_t>::max()};
  {
    SummaryWriter writer = open(folder.path());
    for (std::size_t i = 0; i < numbers.size(); ++i) writer.add_scalar("loss/train", numbers[i], steps[i]);
    writer.add_scalar("bytes \xff and \"quotes\" <b>", 1.0, -1);
    EXPECT_TRUE(writer.status().ok());
  }
  const json read = read_by_tensorboard(folder.path());
  const json& loss = read["scalars"]["loss/train"];
  ASSERT_EQ(loss.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(loss[i][0], steps[i]);
    const double back = std::stod(loss[i][1].get<std::string>());
    const auto expected = static_cast<double>(static_cast<float>(numbers[i]));
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(back) : back == expected) << back << " " << expected;
  }
  EXPECT_EQ(read["scalars"]["bytes \xef\xbf\xbd and \"quotes\" <b>"][0][0], -1);
}

// Two runs in one folder, the first of them killed: its flushed values are there, and those of the second.
TEST(SummaryWriterParity, AKilledRunAndItsSuccessorAreRead) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    SummaryWriter writer = open(folder.path());
    for (int step = 0; step < 100; ++step) writer.add_scalar("loss", 0.5, step);
    writer.flush();
    for (int step = 100; step < 20000; ++step) writer.add_scalar("loss", 0.5, step);  // in blocks of 64 KiB
    ::pause();
  }
  const auto bytes = [&] {
    std::uintmax_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) sum += entry.file_size();
    return sum;
  };
  EXPECT_TRUE(test::wait_for([&] { return bytes() > 300000; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  {
    SummaryWriter writer = open(folder.path());
    writer.add_scalar("loss", 0.25, 1'000'000'000);
    std::jthread other([&] { writer.add_scalar("lr", 1.0, 0); });
  }
  const json loss = read_by_tensorboard(folder.path())["scalars"]["loss"];
  ASSERT_GT(loss.size(), 5000U);
  for (std::size_t i = 0; i + 1 < loss.size(); ++i) ASSERT_EQ(loss[i][0], i);
  EXPECT_EQ(loss.back()[0], 1'000'000'000);
}

// Killed at step 150, resumed from 100, and once more from 110. Values of epochs have smaller numbers.
TEST(SummaryWriterParity, AResumedRunReplacesTheStepsThatItRepeats) {
  const ScratchFolder folder;
  const auto run = [&](std::int64_t first, std::int64_t last, double value) {
    SummaryWriter writer = open(folder.path());
    if (first > 1) writer.purge(first);
    if (first == 1) writer.add_scalar("epoch/loss", value, 0);
    for (std::int64_t step = first; step <= last; ++step) writer.add_scalar("loss", value, step);
  };
  run(1, 150, 1.0);
  run(101, 120, 2.0);
  run(111, 130, 4.0);
  const json read = read_by_tensorboard(folder.path());
  const json& loss = read["scalars"]["loss"];
  ASSERT_EQ(loss.size(), 130U);
  for (std::int64_t i = 0; i < 130; ++i) {
    const double value = i < 100 ? 1.0 : i < 110 ? 2.0 : 4.0;
    EXPECT_EQ(loss[static_cast<std::size_t>(i)][0], i + 1);
    EXPECT_EQ(std::stod(loss[static_cast<std::size_t>(i)][1].get<std::string>()), value) << i;
  }
  EXPECT_EQ(read["scalars"]["epoch/loss"].size(), 1U);
  // TensorBoard's other reader has the same.
  std::vector<std::int64_t> steps(130);
  std::iota(steps.begin(), steps.end(), 1);
  EXPECT_EQ(read["pages"]["loss"], json(steps));
  EXPECT_EQ(read["pages"]["epoch/loss"], json::array({0}));
}

TEST(SummaryWriterParity, AFullDiskLeavesWholeRecords) {
  const ScratchFolder folder;
  std::vector<std::string> warnings;
  log::set_output([&](std::string_view line) { warnings.emplace_back(line); });
  {
    SummaryWriter writer = open(folder.path());
    writer.add_scalar("loss", 1.0, 0);
    writer.flush();
    {
      const test::FileSizeLimit limit(std::filesystem::file_size(writer.path()) + 10);
      for (int i = 1; i < 4; ++i) {
        writer.add_scalar("loss", 1.0, i);
        writer.flush();
      }
    }
    EXPECT_FALSE(writer.status().ok());
    writer.add_scalar("loss", 1.0, 9);
  }
  log::set_output({});
  EXPECT_EQ(warnings.size(), 1U);
  const json read = read_by_tensorboard(folder.path());
  EXPECT_EQ(read["scalars"]["loss"].size(), 2U);
  EXPECT_EQ(read["events"], 3);
}

}  // namespace
}  // namespace lockstep::report
