#include "support/other_user.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace lockstep::test {
namespace {

std::string act_as_other(const std::function<std::string()>& act) {
  const uid_t user = OtherUser::kNumber;
  if (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)
    return "cannot become another user";
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of users clears it
  try {
    return act();
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

}  // namespace

OtherUser::OtherUser(const std::function<std::string()>& act) {
  if (geteuid() != 0) throw std::runtime_error("this test acts as another user: run it as root");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  answer_.reset(ends[0]);
  pid_ = fork();
  if (pid_ == 0) {
    const std::string answer = act_as_other(act);
    (void)!write(ends[1], answer.data(), answer.size());
    _exit(0);
  }
  close(ends[1]);
  if (pid_ < 0) throw std::runtime_error("cannot fork");
}

OtherUser::~OtherUser() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string OtherUser::result(std::chrono::seconds limit) {
  std::string answer;
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    pollfd entry{answer_.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) <= 0) {
      ADD_FAILURE() << "the other user's process does not end";
      return answer;
    }
    char bytes[4096];
    const ssize_t count = read(answer_.get(), bytes, sizeof bytes);
    if (count <= 0) return answer;
    answer.append(bytes, static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::test
