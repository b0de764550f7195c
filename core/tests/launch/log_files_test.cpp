// Log files whose writes block: a pipe that nobody reads takes the place of a file on a disk that stands still.
#include "launch/output/log_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <utility>

#include "base/poll.h"
#include "launch/output/worker_stream.h"

namespace lockstep::launch {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  Fd out;
  Fd in;
};

// Fills the pipe, so that the next write blocks. Returns what is in it.
std::string fill(const Pipe& pipe) {
  const int flags = fcntl(pipe.in.get(), F_GETFL);
  EXPECT_EQ(fcntl(pipe.in.get(), F_SETFL, flags | O_NONBLOCK), 0);
  std::string text;
  while (write(pipe.in.get(), "earlier\n", 8) == 8) text += "earlier\n";
  EXPECT_EQ(fcntl(pipe.in.get(), F_SETFL, flags), 0);
  return text;
}

std::string read_to_the_end(int fd) {
  std::string text;
  std::array<char, 65536> buffer{};
  for (ssize_t size = 0; (size = read(fd, buffer.data(), buffer.size())) > 0;) text.append(buffer.data(), size);
  return text;
}

class LogFilesFault : public testing::Test {
 protected:
  void start(std::chrono::nanoseconds patience) { files_ = LogFiles::start("logs", patience).value(); }

  Pipe file_;
  Fd signals_{eventfd(0, EFD_CLOEXEC)};
  std::unique_ptr<LogFiles> files_;
};

TEST_F(LogFilesFault, AFullOneHoldsTheWorkerBackAndLosesNothing) {
  start(kLong);
  const std::string earlier = fill(file_);  // the thread writes nothing until the reader begins
  Pipe worker;
  WorkerStream stream(std::move(worker.out), files_->add(std::move(file_.in), "stdout.log"), {});
  std::string line(1000, 'x');
  line.back() = '\n';
  std::string said;
  while (stream.wants_read()) {
    said += line;
    ASSERT_EQ(write(worker.in.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    ASSERT_TRUE(stream.read_some());
    ASSERT_LT(said.size(), 2U << 20);
  }
  EXPECT_GT(said.size(), 512U << 10);
  std::vector<pollfd> polled;
  files_->add_to(polled);
  EXPECT_FALSE(poll_until(polled, Deadline::after(std::chrono::seconds(0))).value());
  std::string written;
  std::thread reader([&] { written = read_to_the_end(file_.out.get()); });
  EXPECT_TRUE(poll_until(polled, Deadline::after(kLong)).value());
  while (!stream.wants_read()) std::this_thread::yield();
  stream.finish();
  files_->finish(signals_.get(), Deadline::after(kLong));
  reader.join();
  EXPECT_EQ(written, earlier + said);
}

TEST_F(LogFilesFault, BeyondTheHardLimitLinesAreCounted) {
  start(kLong);
  auto log = files_->add(std::move(file_.in), "stdout.log");
  const std::string block = std::string((1 << 20) - 1, 'x') + "\n";
  for (int i = 0; i < 8; ++i) log->append(block);
  log.reset();
  std::string written;
  std::thread reader([&] { written = read_to_the_end(file_.out.get()); });
  files_->finish(signals_.get(), Deadline::after(kLong));
  reader.join();
  EXPECT_TRUE(written.ends_with("\nlockstep: 3 lines were dropped here: the disk was too slow\n"))
      << written.substr(written.size() - 100);
}

TEST_F(LogFilesFault, OneThatStandsStillIsLeft) {
  start(std::chrono::milliseconds(200));
  auto log = files_->add(std::move(file_.in), "stdout.log");
  log->append(std::string(1 << 20, 'x'));
  EXPECT_EQ(files_->call<int>([] { return 1; }, signals_.get(), Deadline::after(std::chrono::milliseconds(10)))
                .status()
                .code(),
            ErrorCode::kTimeout);
  log.reset();
  testing::internal::CaptureStderr();
  files_->finish(signals_.get(), Deadline::never());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("did not take the end of the output in time: "),
            std::string::npos);
  const std::uint64_t one = 1;
  ASSERT_EQ(write(signals_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_EQ(files_->call<int>([] { return 1; }, signals_.get(), Deadline::never()).status().code(),
            ErrorCode::kAborted);
  files_.reset();
  EXPECT_LE(read_to_the_end(file_.out.get()).size(), 1U << 20);  // ends: the thread has closed its end
}

}  // namespace
}  // namespace lockstep::launch
