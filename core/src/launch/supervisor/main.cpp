// The supervisor: a small process between a launcher and its workers. It makes sure that no worker outlives the job.
//
// It is the workers' parent and a "child subreaper": a process whose parent dies becomes the supervisor's child, also
// if it forked twice or called setsid. So "kill all my children until I have none" reaches every descendant. The
// supervisor does that when the launcher orders it and when the launcher dies (SIGKILL included: its pidfd becomes
// readable). If the supervisor is killed, the kernel kills the workers (PR_SET_PDEATHSIG).
//
// Signals that ask for an end are the launcher's business: Slurm, systemd and terminals send them to every process of a
// job at once, and the workers must have the time that the launcher gives them.
//
// It is linked statically and carried inside liblockstep_launch: it starts in some hundred microseconds and needs no
// installed file. One thread, no heap use after start. protocol.h has the messages.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/standard_descriptors.h"
#include "launch/supervisor/descendants.h"
#include "launch/supervisor/protocol.h"

namespace {

using namespace lockstep::launch::supervisor;

struct Worker {
  const WorkerHeader* header;
  const char* executable;
  char** arguments;
  char** environment;
  pid_t pid;  // 0 when not running
  int pid_fd;
};

int launcher_socket = -1;
Worker* workers = nullptr;
std::uint32_t worker_count = 0;
const char* launchers_folder = "";

void send_event(EventKind kind, std::uint32_t index, int code, int detail) {
  const Event event{kind, static_cast<std::int32_t>(index), code, detail, monotonic_ns()};
  // The send fails when the launcher is dead. Its pidfd then makes us exit.
  while (send(launcher_socket, &event, sizeof event, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// glibc 2.36 declares pidfd_open without C linkage. The descriptor is closed on exec.
int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

[[noreturn]] void give_up(int error_number) {
  send_event(EventKind::kFailed, 0, 0, error_number);
  _exit(70);
}

char** read_strings(const char*& cursor, std::uint32_t count) {
  auto** strings = static_cast<char**>(calloc(count + 1, sizeof(char*)));
  if (strings == nullptr) give_up(ENOMEM);
  for (std::uint32_t i = 0; i < count; ++i) {
    strings[i] = const_cast<char*>(cursor);
    cursor += strlen(cursor) + 1;
  }
  return strings;
}

pid_t read_plan(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) give_up(errno);
  const void* mapping = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) give_up(errno);
  const auto* header = static_cast<const PlanHeader*>(mapping);
  worker_count = header->worker_count;
  workers = static_cast<Worker*>(calloc(worker_count, sizeof(Worker)));
  if (workers == nullptr) give_up(ENOMEM);
  const char* cursor = reinterpret_cast<const char*>(header + 1);
  launchers_folder = cursor;
  cursor += header->folder_bytes;
  for (std::uint32_t i = 0; i < worker_count; ++i) {
    const auto* worker = reinterpret_cast<const WorkerHeader*>(cursor);
    const char* text = cursor + sizeof(WorkerHeader);
    cursor = text + worker->string_bytes;
    workers[i].header = worker;
    workers[i].executable = text;
    text += strlen(text) + 1;
    workers[i].arguments = read_strings(text, worker->argument_count);
    workers[i].environment = read_strings(text, worker->environment_count);
    workers[i].pid_fd = -1;
  }
  return header->launcher_pid;
}

// Each of the launcher's descriptors may only reach the worker that it is meant for.
void hide_descriptors() {
  for (std::uint32_t i = 0; i < worker_count; ++i) {
    const WorkerHeader& header = *workers[i].header;
    for (const int fd : header.standard_fds) {
      if (fd > 2) fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (header.report_fd >= 0) fcntl(header.report_fd, F_SETFD, FD_CLOEXEC);
  }
}

// Only where this user may raise it again: who may go one step up may go back as well.
void lower_priority() {
  constexpr int kHighest = -20;
  constexpr int kLowest = 19;
  const int own = getpriority(PRIO_PROCESS, 0);
  if (own > kHighest && setpriority(PRIO_PROCESS, 0, own - 1) == 0) setpriority(PRIO_PROCESS, 0, kLowest);
}

// When memory runs out, the kernel ends this process, and not a worker. Any user may go back to what it was before.
void be_first_without_memory() {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(!write(fd, "1000", 4));
  close(fd);
}

// Runs between vfork and execve, where only system calls are safe.
[[noreturn]] void become_worker(const Worker& worker, pid_t supervisor, volatile int& error_number) {
  const WorkerHeader& header = *worker.header;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(127);
  setsid();
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ}) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // The worker starts even if the system no longer allows this mask (a core went offline).
  if (header.pinned != 0) sched_setaffinity(0, sizeof header.cpus, &header.cpus);
  if (header.low_priority != 0) {
    lower_priority();
    be_first_without_memory();
  }
  // A source may itself be 0, 1 or 2 (inherited), so all sources are first copied to higher numbers.
  int moved[3];
  for (int i = 0; i < 3; ++i) moved[i] = fcntl(header.standard_fds[i], F_DUPFD_CLOEXEC, 3);
  for (int i = 0; i < 3; ++i) {
    if (moved[i] >= 0) dup2(moved[i], i);
  }
  if (header.report_fd >= 0) fcntl(header.report_fd, F_SETFD, 0);
  execve(worker.executable, worker.arguments, worker.environment);
  error_number = errno;
  _exit(127);
}

// Returns execve's errno; 0 when the worker runs.
__attribute__((noinline)) int start(Worker& worker, int epoll) {
  volatile int error_number = 0;
  const pid_t supervisor = getpid();
  const pid_t pid = vfork();
  // NOLINTNEXTLINE(clang-analyzer-unix.Vfork): it makes system calls only
  if (pid == 0) become_worker(worker, supervisor, error_number);
  if (pid < 0) return errno;
  if (error_number != 0) {
    waitpid(pid, nullptr, 0);
    return error_number;
  }
  worker.pid = pid;
  worker.pid_fd = open_pidfd(pid);
  if (worker.pid_fd < 0) return errno;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(&worker - workers);
  return epoll_ctl(epoll, EPOLL_CTL_ADD, worker.pid_fd, &event) == 0 ? 0 : errno;
}

void note_exit(std::uint32_t index, int status) {
  Worker& worker = workers[index];
  worker.pid = 0;
  close(worker.pid_fd);
  if (WIFEXITED(status)) {
    send_event(EventKind::kExited, index, CLD_EXITED, WEXITSTATUS(status));
  } else {
    send_event(EventKind::kExited, index, WCOREDUMP(status) ? CLD_DUMPED : CLD_KILLED, WTERMSIG(status));
  }
}

// Reports a worker's exit to the launcher. An orphan is only reaped.
void note_child(pid_t pid, int status) {
  for (std::uint32_t i = 0; i < worker_count; ++i) {
    if (workers[i].pid == pid) return note_exit(i, status);
  }
}

// After `limit_ms` the launcher is told which processes are stuck and stops waiting. This process stays until they die.
void end_workers(int limit_ms) {
  std::int64_t deadline_ns = limit_ms < 0 ? -1 : monotonic_ns() + limit_ms * 1'000'000LL;
  const auto report_survivors = [] { for_each_child([](pid_t pid) { send_event(EventKind::kAlive, 0, 0, pid); }); };
  while (!kill_descendants(deadline_ns, note_child)) {
    report_survivors();
    if (deadline_ns < 0 || monotonic_ns() < deadline_ns) break;  // we may not signal them
    send_event(EventKind::kStuck, 0, 0, 0);
    deadline_ns = -1;
  }
}

[[noreturn]] void end_everything(int limit_ms) {
  end_workers(limit_ms);
  send_event(EventKind::kEmpty, 0, 0, 0);
  _exit(0);
}

// Files that are of no use without the launcher.
void remove_launchers_folder() {
  DIR* const folder = opendir(launchers_folder);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) unlinkat(dirfd(folder), entry->d_name, 0);
  closedir(folder);
  rmdir(launchers_folder);
}

// The folder comes last: its disk may hang, and the workers must not outlive the launcher.
[[noreturn]] void end_without_launcher() {
  end_workers(-1);
  remove_launchers_folder();
  _exit(0);
}

void take_order() {
  Order order{};
  const ssize_t size = recv(launcher_socket, &order, sizeof order, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size != static_cast<ssize_t>(sizeof order)) end_without_launcher();
  if (order.kind == OrderKind::kEnd) end_everything(order.limit_ms);
  for (std::uint32_t i = 0; i < worker_count; ++i) {
    const bool meant = order.worker == kEveryWorker || static_cast<std::uint32_t>(order.worker) == i;
    if (!meant || workers[i].pid == 0) continue;
    // Each worker leads its own process group. A stopped worker must run to receive the signal.
    kill(-workers[i].pid, order.signal);
    kill(-workers[i].pid, SIGCONT);
  }
}

constexpr std::uint64_t kSocketTag = UINT64_MAX;
constexpr std::uint64_t kSignalTag = UINT64_MAX - 1;
constexpr std::uint64_t kLauncherTag = UINT64_MAX - 2;

void watch(int epoll, int fd, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) give_up(errno);
}

// epoll returns events in the order in which they happened, so the first exit reported is the first that happened.
// Returns whether SIGCHLD was among them.
bool handle_events(int epoll, int signal_fd, int timeout_ms) {
  epoll_event events[64];
  const int count = epoll_wait(epoll, events, 64, timeout_ms);
  bool child_exited = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    if (tag == kLauncherTag) end_without_launcher();
    if (tag == kSocketTag) {
      take_order();
    } else if (tag == kSignalTag) {
      signalfd_siginfo info{};
      if (read(signal_fd, &info, sizeof info) != sizeof info) continue;
      child_exited = true;
    } else if (workers[tag].pid != 0) {
      int status = 0;
      if (waitpid(workers[tag].pid, &status, WNOHANG) > 0) note_exit(static_cast<std::uint32_t>(tag), status);
    }
  }
  return child_exited;
}

[[noreturn]] void serve(int epoll, int signal_fd) {
  for (;;) {
    if (!handle_events(epoll, signal_fd, -1)) continue;
    // Workers come first, in the order of their exits. Other children that exited are orphans.
    while (handle_events(epoll, signal_fd, 0)) {
    }
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG))
      note_child(pid, status);
  }
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  if (argc != 3) {
    fputs("lockstep-supervisor is started by Lockstep's launcher, not by hand\n", stderr);
    return 64;
  }
  launcher_socket = atoi(argv[1]);
  const int plan_fd = atoi(argv[2]);
  prctl(PR_SET_NAME, "lockstep-supervisor");  // ps shows the first 15 characters
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // If this process is stopped when the launcher dies, it must go on to end the workers.
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  const pid_t launcher = read_plan(plan_fd);
  close(plan_fd);
  fcntl(launcher_socket, F_SETFD, FD_CLOEXEC);
  hide_descriptors();

  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigset_t blocked = watched;
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&blocked, number);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  signal(SIGCHLD, SIG_DFL);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  const int launcher_fd = open_pidfd(launcher);
  if (getppid() != launcher) {  // it died before we could watch it
    remove_launchers_folder();
    return 0;
  }
  watch(epoll, launcher_socket, kSocketTag);
  watch(epoll, signal_fd, kSignalTag);
  watch(epoll, launcher_fd, kLauncherTag);

  for (std::uint32_t i = 0; i < worker_count; ++i) {
    const int error_number = start(workers[i], epoll);
    if (error_number != 0) {
      send_event(EventKind::kStartFailed, i, 0, error_number);
      end_everything(-1);
    }
    send_event(EventKind::kStarted, i, 0, workers[i].pid);
  }
  // The workers have their own copies. Ours would keep their pipes open after they exit.
  for (std::uint32_t i = 0; i < worker_count; ++i) {
    for (const int fd : workers[i].header->standard_fds) {
      if (fd > 2) close(fd);
    }
    if (workers[i].header->report_fd >= 0) close(workers[i].header->report_fd);
  }
  serve(epoll, signal_fd);
}
