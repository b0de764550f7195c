// torchelastic's error files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/nodes.h"
#include "lockstep/base/fd.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

// As Python's @record writes it.
constexpr const char* kRecorded =
    "[ $RANK = 1 ] || exec sleep 600; printf '%s' '{\"message\": {\"message\": \"ValueError: too hot\", \"extraInfo\": "
    "{\"py_callstack\": \"Traceback: line 3\", \"timestamp\": \"1\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 4";

TEST(ErrorFilesMulti, AWorkersErrorIsReportedOnEveryNodeAndPassedOn) {
  const ScratchFolder folder;
  LocalNodes job("2", {"--log-dir", folder.path().string(), "--rdzv-id", "hot"});
  for (int node = 0; node < 2; ++node) {
    job.start(1, {"sh", "-c", kRecorded}, {"--node-rank", std::to_string(node)},
              {"TORCHELASTIC_ERROR_FILE=" + folder.path("reply" + std::to_string(node))});
  }
  // Both, before the report that they share is read.
  const Finished ends[] = {job.node(0).finish(), job.node(1).finish()};
  for (int node = 0; node < 2; ++node) {
    const Finished& end = ends[node];
    EXPECT_EQ(end.exit_code, 4);
    EXPECT_TRUE(contains(end.err, "\n  its error: ValueError: too hot\n")) << end.err;
    for (const std::string& path : {folder.path("reply" + std::to_string(node)), folder.path("hot/error.json")}) {
      const json report = json::parse(read_file(path), nullptr, false);
      ASSERT_TRUE(report.is_object()) << path;
      EXPECT_EQ(report["message"]["message"], "ValueError: too hot");
      EXPECT_EQ(report["message"]["errorCode"], 4);
      EXPECT_EQ(report["message"]["extraInfo"]["py_callstack"], "Traceback: line 3");
      EXPECT_EQ(report["message"]["extraInfo"]["rank"], 1);
      EXPECT_EQ(report["message"]["extraInfo"]["node"], 1);
    }
  }
}

// LibTorch's call stack of an error is longer than the end of stderr that the report shows.
TEST(ErrorFilesMulti, TheMessageOfAnUncaughtErrorComesBeforeItsCallStack) {
  const std::string abort = R"(
    printf "terminate called after throwing an instance of 'c10::Error'\n  what():  too hot\n" >&2
    echo "Exception raised from f at f.h:1 (most recent call first):" >&2
    i=0; while [ $i -lt 64 ]; do echo "frame #$i: f" >&2; i=$((i + 1)); done
    kill -ABRT $$)";
  const Finished end = run_program({LOCKSTEP_PROGRAM, "run", "sh", "-c", abort});
  EXPECT_EQ(end.exit_code, 128 + SIGABRT);
  EXPECT_TRUE(contains(end.err, "\n  its error: too hot\n  the end of its stderr:\n    frame #44: f\n")) << end.err;
}

// A worker may be a wrapper that starts the program elsewhere, and the program a launcher, which makes the file anew.
TEST(ErrorFilesMulti, TheProgramMayHaveOtherNamespacesAnotherUserOrANewFile) {
  const std::string write = "printf '%s' '{\"message\": \"ValueError: too hot\"}' > $TORCHELASTIC_ERROR_FILE; exit 4";
  for (const Words& wrapper :
       {Words{"unshare", "--pid", "--fork", "--mount-proc"}, Words{"setpriv", "--reuid", "12345", "--clear-groups"},
        Words{"env", "-C", "/", "sh", "-c", "rm $TORCHELASTIC_ERROR_FILE; exec \"$@\"", "sh"}}) {
    const Words command{"sh", "-c", write};
    const Finished end = run_program(Words{LOCKSTEP_PROGRAM, "run"} + wrapper + command);
    EXPECT_EQ(end.exit_code, 4) << wrapper.front() << ": " << end.err;
    EXPECT_TRUE(contains(end.err, "\n  its error: ValueError: too hot\n")) << wrapper.front() << ": " << end.err;
  }
}

// `out`: a worker's line that ends with the path of its error file.
std::filesystem::path error_folder(const std::string& out) {
  const std::size_t begin = out.find('/');
  return std::filesystem::path(out.substr(begin, out.find('\n') - begin)).parent_path();
}

// Without /dev/shm the folder is in TMPDIR.
Words without_memory(const Words& job) {
  return Words{"unshare", "-m", "sh", "-c", "mount -t tmpfs -o ro none /dev/shm && exec \"$@\"", "sh"} + job;
}

TEST(ErrorFilesMulti, AreInMemoryOrElseInTmpdir) {
  const ScratchFolder folder;
  for (const bool memory : {true, false}) {
    const Words words = Words{"env", "TMPDIR=" + folder.path().string()} + job(1, "echo $TORCHELASTIC_ERROR_FILE");
    const Finished end = run_program(memory ? words : without_memory(words));
    EXPECT_TRUE(contains(end.out, (memory ? "/dev/shm" : folder.path().string()) + "/lockstep_errors_")) << end.out;
    EXPECT_FALSE(std::filesystem::exists(error_folder(end.out)));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(ErrorFilesMulti, WithoutAPlaceThereAreNone) {
  const Words words = Words{"env", "TMPDIR=/no/such/folder"} + job(1, "echo \"[$TORCHELASTIC_ERROR_FILE]\"");
  const Finished end = run_program(without_memory(words));
  EXPECT_EQ(end.out, "[]\n") << end.err;
}

// Programs that clear TMPDIR of old files leave a locked folder alone.
TEST(ErrorFilesMulti, TheFolderIsLockedDuringTheJob) {
  const std::string lock = "flock --exclusive --nonblock $(dirname $TORCHELASTIC_ERROR_FILE) true || echo locked";
  EXPECT_TRUE(contains(run_program(job(1, lock)).out, "locked\n"));
}

TEST(ErrorFilesFault, AKilledLauncherLeavesNone) {
  Process launcher(job(1, "echo $TORCHELASTIC_ERROR_FILE; exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return contains(launcher.out_so_far(), ".json\n"); }));
  const std::filesystem::path folder = error_folder(launcher.out_so_far());
  EXPECT_FALSE(std::filesystem::is_empty(folder));
  kill(launcher.pid(), SIGKILL);
  EXPECT_TRUE(launcher.wait_until_no_descendant());
  EXPECT_TRUE(wait_for([&] { return !std::filesystem::exists(folder); }));
}

// Of a launcher that was killed together with its supervisor.
TEST(ErrorFilesMulti, AnAbandonedFolderIsRemovedAndALockedOneIsNot) {
  const std::filesystem::path abandoned = "/dev/shm/lockstep_errors_left" + std::to_string(getpid());
  const std::string locks =
      "ls -d $(dirname $TORCHELASTIC_ERROR_FILE) && \"$@\" && ls -d $(dirname $TORCHELASTIC_ERROR_FILE)";
  std::filesystem::create_directory(abandoned);
  std::ofstream(abandoned / "error.json") << "{}";
  const Words another{LOCKSTEP_PROGRAM, "run", "true"};
  const Finished end = run_program(Words{LOCKSTEP_PROGRAM, "run", "sh", "-c", locks, "sh"} + another);
  EXPECT_EQ(end.exit_code, 0) << "the folder of a job that runs was removed: " << end.out << end.err;
  EXPECT_FALSE(std::filesystem::exists(abandoned));
}

// Nobody may open the folder while this object lives: who tries waits, as for a disk that does not answer.
class HungFolder {
 public:
  explicit HungFolder(const std::filesystem::path& folder)
      : fd_(fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY)) {
    hung_ =
        fd_.valid() && fanotify_mark(fd_.get(), FAN_MARK_ADD, FAN_OPEN_PERM | FAN_ONDIR, AT_FDCWD, folder.c_str()) == 0;
  }
  bool hung() const { return hung_; }
  bool somebody_waits() const {
    pollfd polled{fd_.get(), POLLIN, 0};
    return poll(&polled, 1, 0) == 1;
  }

 private:
  Fd fd_;
  bool hung_ = false;
};

TEST(ErrorFilesFault, AKilledLaunchersWorkersDoNotWaitForTheDisk) {
  Process launcher(job(1, "echo $$ $TORCHELASTIC_ERROR_FILE; exec sleep 600"));
  ASSERT_TRUE(wait_for([&] { return contains(launcher.out_so_far(), ".json\n"); }));
  const std::string out = launcher.out_so_far();
  const pid_t worker = std::stoi(out);
  {
    const HungFolder folder(error_folder(out));
    ASSERT_TRUE(folder.hung()) << "this needs fanotify: " << std::strerror(errno);
    kill(launcher.pid(), SIGKILL);
    EXPECT_TRUE(wait_for([&] { return kill(worker, 0) != 0; }));
    EXPECT_TRUE(wait_for([&] { return folder.somebody_waits(); }));
  }
  EXPECT_TRUE(launcher.wait_until_no_descendant());
}

TEST(ErrorFilesMulti, WhatIsNoErrorFileIsLeftAlone) {
  for (const char* text : {"", "{", "[]", "{\"message\": 3}", "{\"message\": {\"message\": [], \"extraInfo\": 1}}"}) {
    const Finished end =
        run_program(job(1, "printf '%s' '" + std::string(text) + "' > $TORCHELASTIC_ERROR_FILE; echo sad >&2; exit 4"));
    EXPECT_EQ(end.exit_code, 4);
    EXPECT_FALSE(contains(end.err, "its error")) << end.err;
    EXPECT_TRUE(contains(end.err, "    sad")) << end.err;
  }
}

TEST(ErrorFilesMulti, ALaterRunWithTheSameNameIsToldApart) {
  const ScratchFolder folder;
  const Words options{"--log-dir", folder.path().string(), "--rdzv-id", "twice", "--redirects", "1"};
  EXPECT_EQ(run_program(job(1, "echo first; exit 4", options)).exit_code, 4);
  EXPECT_TRUE(std::filesystem::exists(folder.path("twice/error.json")));
  EXPECT_EQ(run_program(job(1, "echo second", options)).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("twice/error.json")));
  const std::string log = read_file(folder.path("twice/attempt_0/0/stdout.log"));
  EXPECT_TRUE(log.starts_with("first\n\nlockstep: another run begins here, ") && log.ends_with("\nsecond\n")) << log;
}

TEST(ErrorFilesFault, AReportThatCannotBeWrittenIsAWarning) {
  Process::Settings settings;
  settings.environment = {"TORCHELASTIC_ERROR_FILE=/dev/null/reply"};
  Process launcher(job(1, "exit 4"), settings);
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_TRUE(contains(end.err, "cannot write the error file '/dev/null/reply'")) << end.err;
}

}  // namespace
}  // namespace lockstep::test
