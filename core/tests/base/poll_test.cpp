#include "base/poll.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <limits>
#include <thread>

#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Fd make_event() {
  return Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

TEST(Poll, TimeoutsAreRoundedUpAndBounded) {
  EXPECT_EQ(poll_timeout(Deadline::never()), -1);
  EXPECT_EQ(poll_timeout(Deadline::after(milliseconds(0))), 0);
  EXPECT_EQ(poll_timeout(Deadline::after(hours(24 * 300))), std::numeric_limits<int>::max());
  const Deadline soon = Deadline::after(hours(1));
  EXPECT_GT(poll_timeout(soon), 0);
  EXPECT_LE(poll_timeout(soon), 3600 * 1000);
}

TEST(Poll, AnEventEndsTheWait) {
  const Fd quiet = make_event();
  const Fd event = make_event();
  ASSERT_EQ(::eventfd_write(event.get(), 1), 0);
  EXPECT_TRUE(poll_until(event.get(), POLLIN, Deadline::never()).value());
  std::array<pollfd, 2> entries{{{quiet.get(), POLLIN, 0}, {event.get(), POLLIN, 0}}};
  EXPECT_TRUE(poll_until(entries, Deadline::never()).value());
  EXPECT_EQ(entries[0].revents, 0);
  EXPECT_EQ(entries[1].revents, POLLIN);
}

TEST(Poll, ADeadlineThatHasPassedStillLooksOnce) {
  const Fd event = make_event();
  EXPECT_FALSE(poll_until(event.get(), POLLIN, Deadline::after(milliseconds(0))).value());
  EXPECT_TRUE(poll_until(event.get(), POLLOUT, Deadline::after(milliseconds(0))).value());
}

TEST(Poll, TheDeadlineEndsTheWaitAndNotBefore) {
  const Fd event = make_event();
  const Deadline deadline = Deadline::after(microseconds(5500));
  EXPECT_FALSE(poll_until(event.get(), POLLIN, deadline).value());
  EXPECT_TRUE(deadline.expired());
}

TEST(Poll, ADescriptorThatIsClosedAnswersAtOnce) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd reader(ends[0]);
  ::close(ends[1]);
  EXPECT_TRUE(poll_until(reader.get(), POLLIN, Deadline::never()).value());
}

// Signals come until the wait is over; an event that is written after some of them ends it.
TEST(Poll, SignalsDoNotEndTheWait) {
  static std::atomic<int> signals{0};
  signals = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const Fd event = make_event();
  const pthread_t waiter = ::pthread_self();
  std::jthread sender([&] {
    while (signals < 3) {
      ::pthread_kill(waiter, SIGUSR1);
      std::this_thread::sleep_for(milliseconds(1));
    }
    (void)::eventfd_write(event.get(), 1);
  });
  EXPECT_TRUE(poll_until(event.get(), POLLIN, Deadline::never()).value());
  EXPECT_GE(signals, 3);
  sender.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace lockstep
