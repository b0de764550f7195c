// Processes that do not die, or that /proc does not show: the launcher still exits in time, and names what is left.
#include "launch/process/process_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "launch/job/agent.h"
#include "launch/supervisor/descendants.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::launch {
namespace {

using test::wait_for;

// Makes a process look to its parent like one that waits for a device: after SIGKILL its parent cannot reap it until
// its tracer has.
class Undying {
 public:
  explicit Undying(pid_t pid) : pid_(pid) { EXPECT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0); }
  ~Undying() { let_go(); }
  Undying(const Undying&) = delete;
  Undying& operator=(const Undying&) = delete;

  void let_go() {
    if (pid_ > 0) {
      EXPECT_EQ(waitpid(pid_, nullptr, __WALL), pid_);
    }
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

TEST(ProcessTreeFault, AProcessThatDoesNotDieIsNamedAndLeftToTheSupervisor) {
  Command command;
  command.executable = "/bin/sleep";
  command.arguments = {"sleep", "600"};
  auto tree = ProcessTree::start(std::vector<Command>{command, command});
  ASSERT_TRUE(tree.ok()) << tree.status().message();
  const pid_t pid = tree->pids()[1];
  const std::set<pid_t> supervisor = test::children_of(getpid());
  Undying undying(pid);
  const Status ended = tree->end(std::chrono::milliseconds(200));
  EXPECT_EQ(ended.code(), ErrorCode::kTimeout);
  EXPECT_NE(ended.message().find("process " + std::to_string(pid) + " ('sleep') did not die"), std::string::npos)
      << ended.message();
  ASSERT_EQ(supervisor.size(), 1U);
  EXPECT_EQ(waitpid(*supervisor.begin(), nullptr, WNOHANG), 0) << "the supervisor has left before its child";
  undying.let_go();
  EXPECT_EQ(waitpid(*supervisor.begin(), nullptr, 0), *supervisor.begin());
}

TEST(ProcessTreeFault, AFrozenSupervisorIsWoken) {
  Command command;
  command.executable = "/bin/sleep";
  command.arguments = {"sleep", "600"};
  auto tree = ProcessTree::start(std::vector<Command>{command});
  ASSERT_TRUE(tree.ok()) << tree.status().message();
  const std::set<pid_t> supervisor = test::children_of(getpid());
  ASSERT_EQ(supervisor.size(), 1U);
  kill(*supervisor.begin(), SIGSTOP);
  EXPECT_TRUE(tree->end().ok());
}

// The exit code of run_job in a new process. `meanwhile` gets its pid.
int run_job_apart(const JobOptions& options, const std::string& error_file,
                  const std::function<void(pid_t)>& meanwhile) {
  const pid_t pid = fork();
  if (pid == 0) {
    const int errors = open(error_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (errors < 0) _exit(98);
    dup2(errors, STDERR_FILENO);
    const Result<int> code = run_job(options);
    if (!code.ok()) static_cast<void>(!write(errors, code.status().message().data(), code.status().message().size()));
    _exit(code.ok() ? code.value() : 99);
  }
  meanwhile(pid);
  int status = 0;
  EXPECT_TRUE(wait_for([&] { return waitpid(pid, &status, WNOHANG) == pid; })) << "it does not end";
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessTreeFault, TheLauncherEndsAndNamesWhatDoesNotDie) {
  const test::ScratchFolder folder;
  JobOptions options;
  options.workers = 2;
  options.grace = std::chrono::milliseconds(100);
  options.end_timeout = std::chrono::milliseconds(200);
  options.max_restarts = 3;
  options.command = {"sh", "-c",
                     "if [ $RANK = 1 ]; then echo $$ > " + folder.path("pid~") + "; mv " + folder.path("pid~") + " " +
                         folder.path("pid") + "; exec sleep 600; fi; while ! [ -e " + folder.path("traced") +
                         " ]; do sleep 0.01; done; exit 7"};
  std::unique_ptr<Undying> undying;
  std::string pid;
  const int code = run_job_apart(options, folder.path("errors"), [&](pid_t) {
    ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("pid")); }));
    std::ifstream(folder.path("pid")) >> pid;
    undying = std::make_unique<Undying>(std::stoi(pid));
    std::ofstream(folder.path("traced"));
  });
  const std::string errors = test::read_file(folder.path("errors"));
  EXPECT_EQ(code, 7);
  EXPECT_NE(errors.find("rank 0 failed first: exit code 7"), std::string::npos) << errors;
  EXPECT_NE(errors.find("process " + pid), std::string::npos) << errors;
  EXPECT_EQ(errors.find("starting all"), std::string::npos) << errors;
}

TEST(Descendants, AreFoundWithAndWithoutProc) {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  std::set<pid_t> shown;
  EXPECT_EQ(supervisor::for_each_child_in_proc([&](pid_t pid) { shown.insert(pid); }), 1);
  EXPECT_EQ(shown, std::set<pid_t>{child});
  EXPECT_TRUE(supervisor::is_child(child));
  EXPECT_FALSE(supervisor::is_child(getpid()));
  EXPECT_FALSE(supervisor::is_child(1));
  EXPECT_TRUE(supervisor::kill_descendants(-1, [](pid_t, int) {}));
  EXPECT_FALSE(supervisor::is_child(child));
}

}  // namespace
}  // namespace lockstep::launch
