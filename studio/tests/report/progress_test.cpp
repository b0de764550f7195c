// Progress on a terminal (a pty) and elsewhere (a pipe). The test tells the time.
#include "lockstep/report/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/log.h"
#include "report/progress_text.h"

namespace lockstep::report {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Time {
 public:
  std::function<std::chrono::steady_clock::time_point()> clock() {
    return [this] { return now; };
  }
  std::chrono::steady_clock::time_point now = std::chrono::steady_clock::time_point(seconds(1000));
};

std::string all_from(int fd) {
  std::string text;
  std::array<char, 4096> bytes{};
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  for (ssize_t got = 0; (got = ::read(fd, bytes.data(), bytes.size())) > 0;)
    text.append(bytes.data(), static_cast<std::size_t>(got));
  return text;
}

class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    out_.reset(ends[0]);
    in_.reset(ends[1]);
  }
  int fd() const { return in_.get(); }
  std::string text() const { return all_from(out_.get()); }

 private:
  Fd out_, in_;
};

class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    master_.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (::grantpt(master_.get()) != 0 || ::unlockpt(master_.get()) != 0) throw std::runtime_error("no pty");
    slave_.reset(::open(::ptsname(master_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    termios settings{};
    ::tcgetattr(slave_.get(), &settings);
    settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    ::tcsetattr(slave_.get(), TCSANOW, &settings);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(slave_.get(), TIOCSWINSZ, &size);
  }
  int fd() const { return slave_.get(); }
  std::string text() const { return all_from(master_.get()); }

 private:
  Fd master_, slave_;
};

// What a terminal shows after this text: \r goes back, \033[K erases, \n goes on.
std::vector<std::string> shown(const std::string& text) {
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      lines.emplace_back();
    } else if (text.compare(i, 4, "\r\033[K") == 0) {
      lines.back().clear();
      i += 3;
    } else {
      lines.back() += text[i];
    }
  }
  return lines;
}

TEST(Progress, IsWholeLinesAtIntervalsInAPipe) {
  const Pipe pipe;
  Time time;
  {
    Progress progress({.epochs = 2, .fd = pipe.fd(), .interval = seconds(10), .clock = time.clock()});
    progress.begin("train", 0, 40);
    for (int i = 0; i < 40; ++i) {
      time.now += milliseconds(500);
      progress.step(64, 2.0 - 0.025 * i, {.input = 0.1, .compute = 0.3, .communication = 0.1});
    }
    progress.end("accuracy 91.2 %");
    progress.print("a message");
    EXPECT_EQ(
        pipe.text(),
        "train 1/2: 20/40 (50%), loss 1.762, 128 pictures/s, 0:10 left, run 0:30 left, input 20% compute 60% "
        "communication 20%\n"
        "train 1/2: 40/40 (100%), loss 1.512, 128 pictures/s, 0:00 left, run 0:20 left, input 20% compute 60% "
        "communication 20%\n"
        "train 1/2: accuracy 91.2 %, loss 1.512, 128 pictures/s, 20.0 s, input 20% compute 60% communication 20%\n"
        "a message\n");
    progress.begin("test", 0, 0);
    time.now += seconds(11);
    progress.step(5);
    progress.end();
    EXPECT_EQ(pipe.text(), "test 1/2: step 1, 0.5 pictures/s\ntest 1/2: 0.5 pictures/s, 11.0 s\n");
    // The epoch to come has what this one has had: 20 s, 11 s and this pass.
    progress.begin("test", 0, 4);
    time.now += seconds(11);
    progress.step(44);
  }
  EXPECT_EQ(pipe.text(), "test 1/2: 1/4 (25%), 4.0 pictures/s, 0:33 left, run 1:48 left\n");
}

// Three of four parts were done by an earlier run: they count as done, and not as fast steps.
TEST(Progress, OfAResumedEpochGoesOnWhereItWas) {
  const Pipe pipe;
  Time time;
  Progress progress({.epochs = 3, .fd = pipe.fd(), .interval = seconds(1), .clock = time.clock()});
  progress.begin("train", 1, 400, 300);
  const auto step = [&] {
    time.now += seconds(1);
    progress.step(8, 0.5);
  };
  step();
  EXPECT_EQ(pipe.text(), "train 2/3: 301/400 (75%), loss 0.5, 8.0 pictures/s, 1:39 left, run 8:19 left\n");
  for (int i = 0; i < 99; ++i) step();
  const std::string last = "train 2/3: 400/400 (100%), loss 0.5, 8.0 pictures/s, 0:00 left, run 6:40 left\n";
  EXPECT_TRUE(pipe.text().ends_with(last));
  progress.end();
  EXPECT_EQ(pipe.text(), "train 2/3: loss 0.5, 8.0 pictures/s, 100.0 s\n");
  progress.begin("train", 2, 400);
  step();
  EXPECT_EQ(pipe.text(), "train 3/3: 1/400 (0%), loss 0.5, 8.0 pictures/s, 6:39 left, run 6:39 left\n");
}

TEST(Progress, PrintsNothingOnOtherRanks) {
  const Pipe pipe;
  Progress progress({.epochs = 1, .shown = false, .fd = pipe.fd()});
  progress.begin("train", 0, 1);
  progress.step(1, 1.0);
  progress.end();
  progress.print("no");
  EXPECT_EQ(pipe.text(), "");
}

TEST(Progress, RedrawsOneLineOfATerminal) {
  const Terminal terminal(60);
  Time time;
  {
    Progress progress({.epochs = 3, .fd = terminal.fd(), .terminal = true, .unicode = false, .clock = time.clock()});
    progress.begin("train", 1, 1000);
    std::string text = terminal.text();
    for (int i = 0; i < 500; ++i) {
      time.now += milliseconds(10);
      progress.step(8, 0.5);
    }
    text += terminal.text();
    EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 51);  // not for each step
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0);
    ASSERT_EQ(shown(text).size(), 1U);
    EXPECT_LT(shown(text)[0].size(), 60U);
    EXPECT_EQ(shown(text)[0], "train 2/3  #########........  500/1000  loss 0.5  0:05 left");
    // Messages of any thread come above the line, which is drawn again.
    log::warning("a picture is corrupt");
    progress.print("printed\033[2J");
    text += terminal.text();
    ASSERT_EQ(shown(text).size(), 3U);
    EXPECT_NE(shown(text)[0].find("warning: a picture is corrupt"), std::string::npos);
    EXPECT_EQ(shown(text)[1], "printed\\x1b[2J");
    EXPECT_EQ(shown(text)[2].substr(0, 9), "train 2/3");
    progress.end("done");
    text += terminal.text();
    EXPECT_EQ(shown(text)[2], "train 2/3: done, loss 0.5, 800 pictures/s, 5.0 s");
    progress.begin("test", 1, 10);
    time.now += seconds(1);
    progress.step(8);
  }
  EXPECT_EQ(shown(terminal.text()).back(), "");  // nothing stays
}

// A line is never wider than its terminal, and never empty.
TEST(ProgressText, FitsEveryWidth) {
  PassState pass{.name = "train",
                 .epoch = 8,
                 .epochs = 10,
                 .steps = 1000,
                 .done = 333,
                 .samples = 33300,
                 .seconds = 100.0,
                 .weighted_loss = 33300 * 0.123456,
                 .loss_samples = 33300,
                 .times = {.input = 1.0, .compute = 8.0, .communication = 1.0}};
  EXPECT_EQ(
      bar_line(pass, 200, false),
      "train 9/10  ##########....................  333/1000  loss 0.1235  3:20 left  333 pictures/s  run 8:21 left  "
      "input 10% compute 80% communication 10%");
  for (const bool unicode : {false, true}) {
    for (int columns = 1; columns < 160; ++columns) {
      const std::string line = bar_line(pass, columns, unicode);
      const auto width = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
      EXPECT_LE(width, columns);
      EXPECT_GE(width, 1);
      const bool ascii = std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c < 127; });
      EXPECT_TRUE(ascii || unicode);
    }
  }
  // More steps than announced, and a loss that is no number.
  pass.done = 2000;
  pass.weighted_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(bar_line(pass, 70, false), "train 9/10  ##########  2000/1000  loss nan  0:00 left  333 pictures/s");
}

TEST(ProgressText, Durations) {
  EXPECT_EQ(duration_text(0.0), "0:00");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(3599.0), "59:59");
  EXPECT_EQ(duration_text(36061.0), "10:01:01");
  EXPECT_EQ(duration_text(-1.0), "?");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(duration_text(1e300), "?");
}

// The time left for the run counts evaluations of the epochs to come.
TEST(ProgressText, TimeLeft) {
  PassState pass{.epoch = 0, .epochs = 3, .steps = 10, .done = 5, .seconds = 5.0};
  EXPECT_EQ(seconds_left(pass), 5.0);
  EXPECT_EQ(run_seconds_left(pass), 25.0);
  pass.epoch_seconds = 14.0;
  EXPECT_EQ(run_seconds_left(pass), 33.0);
  // A pass of 10 s after one of 20 s: the epochs to come have both.
  pass.epoch_seconds = 0.0;
  pass.seconds_before = 20.0;
  EXPECT_EQ(run_seconds_left(pass), 65.0);
  // Resumed after 3 steps: the others have taken 5 s, and the epochs to come have all 10.
  pass = {.epoch = 0, .epochs = 3, .steps = 10, .done = 8, .done_before = 3, .seconds = 5.0};
  EXPECT_EQ(seconds_left(pass), 2.0);
  EXPECT_EQ(run_seconds_left(pass), 22.0);
  pass.done = 3;
  EXPECT_EQ(run_seconds_left(pass), std::nullopt);
}

}  // namespace
}  // namespace lockstep::report
