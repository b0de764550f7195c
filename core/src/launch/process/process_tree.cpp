#include "launch/process/process_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "base/arithmetic.h"
#include "base/poll.h"
#include "launch/process/memfd.h"
#include "launch/process/program.h"
#include "launch/supervisor/descendants.h"
#include "launch/supervisor/protocol.h"

namespace lockstep::launch {
namespace {

using supervisor::Order;
using supervisor::OrderKind;

// How much later than the limit the supervisor may answer.
constexpr std::chrono::seconds kSupervisorGrace{3};

// Ends a list of strings with their NULs.
std::string padded(std::string strings) {
  strings.resize(round_up(strings.size(), 8), '\0');
  return strings;
}

std::string describe_worker(const Command& command) {
  std::string text;
  const auto append = [&text](const std::string& string) {
    text += string;
    text += '\0';
  };
  append(command.executable);
  for (const std::string& argument : command.arguments) append(argument);
  for (const std::string& variable : command.environment) append(variable);
  text = padded(std::move(text));

  supervisor::WorkerHeader header{};
  header.standard_fds[0] = command.stdin_fd;
  header.standard_fds[1] = command.stdout_fd;
  header.standard_fds[2] = command.stderr_fd;
  header.report_fd = command.report_fd;
  header.argument_count = static_cast<std::uint32_t>(command.arguments.size());
  header.environment_count = static_cast<std::uint32_t>(command.environment.size());
  header.pinned = command.cpus.empty() ? 0 : 1;
  header.low_priority = command.low_priority ? 1 : 0;
  header.string_bytes = static_cast<std::uint32_t>(text.size());
  for (const int cpu : command.cpus) CPU_SET(cpu, &header.cpus);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes + text;
}

Result<Fd> write_plan(std::span<const Command> commands, const std::string& folder) {
  const std::string text = padded(folder + '\0');
  const supervisor::PlanHeader header{getpid(), static_cast<std::uint32_t>(commands.size()), text.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  for (const Command& command : commands) bytes += describe_worker(command);
  Fd plan(memfd_create("lockstep-plan", MFD_CLOEXEC));
  if (!plan.valid()) return Status::from_errno("cannot make a file in memory for the list of workers", errno);
  LOCKSTEP_RETURN_IF_ERROR(write_memfd(plan.get(), bytes, "the list of workers"));
  return plan;
}

// Owns posix_spawn's helper objects.
struct SpawnSetup {
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  // With dup2 onto itself, posix_spawn keeps a close-on-exec descriptor open.
  void keep(int fd) { posix_spawn_file_actions_adddup2(&actions, fd, fd); }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

Result<pid_t> execute_supervisor(std::span<const Command> commands, int socket, int plan, int image) {
  SpawnSetup setup;
  std::set<int> kept{socket, plan};
  for (const Command& command : commands) {
    for (const int fd : {command.stdin_fd, command.stdout_fd, command.stderr_fd, command.report_fd}) {
      if (fd > 2) kept.insert(fd);
    }
  }
  for (const int fd : kept) setup.keep(fd);
  // The supervisor gets its own session: Ctrl-C and `kill -9 -GROUP` reach the launcher, but not the process that
  // cleans up after it. All signals are blocked until the supervisor watches them.
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&setup.attributes, &all);
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);

  std::string name = "lockstep-supervisor";
  std::string socket_text = std::to_string(socket);
  std::string plan_text = std::to_string(plan);
  std::array<char*, 4> arguments{name.data(), socket_text.data(), plan_text.data(), nullptr};
  std::array<char*, 1> environment{nullptr};
  const std::string path = fmt::format("/proc/self/fd/{}", image);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, path.c_str(), &setup.actions, &setup.attributes, arguments.data(), environment.data());
  if (error == ENOENT) {
    return Status(ErrorCode::kUnsupported, "cannot start the process that supervises the ranks: there is no " + path +
                                               "; /proc has to be mounted, and to be that of this PID namespace or of "
                                               "one around it");
  }
  if (error != 0) return Status::from_errno("cannot start the process that supervises the ranks", error);
  return pid;
}

Result<pid_t> start_supervisor(std::span<const Command> commands, const std::string& folder, int socket) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Fd plan, write_plan(commands, folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const Fd image, supervisor_image());
  return execute_supervisor(commands, socket, plan.get(), image.get());
}

// kNotFound and kPermission are left to the workers' programs.
Status supervisor_failure(const Status& status) {
  const bool reserved = status.code() == ErrorCode::kNotFound || status.code() == ErrorCode::kPermission;
  return reserved ? Status(ErrorCode::kIo, status.message()) : status;
}

Status start_failure(int index, const Command& command, int error) {
  const std::string what = fmt::format("cannot start worker {} ('{}')", index, command.executable);
  if (error == ENOEXEC) {
    return Status(ErrorCode::kInvalidArgument,
                  what + ": the file is neither a program for this machine nor a script that begins with '#!'");
  }
  Status plain = Status::from_errno(what, error);
  if (error == ENOENT && access(command.executable.c_str(), F_OK) == 0) {
    return Status(ErrorCode::kNotFound,
                  what +
                      ": the file is there, but not the loader or library path that it names, or the interpreter "
                      "of its first line, where a carriage return at the line's end (Windows) belongs to the name");
  }
  if (error == ENOENT) return Status(ErrorCode::kNotFound, plain.message());
  if (error == EACCES || error == EPERM) return Status(ErrorCode::kPermission, plain.message());
  return plain;
}

std::chrono::steady_clock::time_point time_point(std::int64_t monotonic_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(monotonic_ns));
}

std::string describe_processes(const std::vector<pid_t>& pids) {
  std::vector<std::string> texts;
  for (const pid_t pid : pids) {
    std::string name;
    if (supervisor::proc_is_ours()) std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
    texts.push_back(name.empty() ? std::to_string(pid) : fmt::format("{} ('{}')", pid, name));
  }
  return fmt::format("process{} {}", pids.size() == 1 ? "" : "es", fmt::join(texts, ", "));
}

// `alive` is empty when the supervisor did not answer.
Status stuck(std::chrono::milliseconds limit, const std::vector<pid_t>& alive, pid_t supervisor) {
  return {ErrorCode::kTimeout,
          fmt::format("{} did not die within {:.3g} s of SIGKILL (waiting for a disk or a device?); process {} "
                      "(lockstep-supervisor) stays until it has died",
                      alive.empty() ? "some process of the job" : describe_processes(alive),
                      std::chrono::duration<double>(limit).count(), supervisor)};
}

Status supervisor_gone() {
  return Status(ErrorCode::kInternal,
                "the process that supervises the ranks (lockstep-supervisor) was killed; the ranks were ended with it");
}

}  // namespace

ProcessTree::ProcessTree(Fd socket, pid_t supervisor, std::size_t count)
    : socket_(std::move(socket)), supervisor_(supervisor), pids_(count, 0), started_(count) {}

ProcessTree::~ProcessTree() {
  if (socket_.valid()) (void)end();
}

Result<ProcessTree> ProcessTree::begin(std::span<const Command> commands, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(FdPair pair,
                            make_socket_pair("cannot make a socket pair for the process that supervises the ranks"));
  const Result<pid_t> supervisor = start_supervisor(commands, folder, pair.writer.get());
  if (!supervisor.ok()) return supervisor_failure(supervisor.status());
  pair.writer.reset();
  return ProcessTree(std::move(pair.reader), supervisor.value(), commands.size());
}

Result<ProcessTree> ProcessTree::start(std::span<const Command> commands, int interrupt_fd, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(ProcessTree tree, begin(commands, folder));
  const Status started = tree.await_started(commands, interrupt_fd);
  if (started.ok()) return tree;
  const Status ended = tree.end();
  if (ended.code() != ErrorCode::kTimeout) return started;
  return Status(started.code(), started.message() + "; " + ended.message());
}

Status ProcessTree::await_started(std::span<const Command> commands, int interrupt_fd, Deadline deadline) {
  for (std::size_t i = 0; i < commands.size();) {
    std::array<pollfd, 2> waited{{{socket_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, poll_until(waited, deadline));
    if (!ready) return {ErrorCode::kTimeout, fmt::format("only {} of {} were started in time", i, commands.size())};
    if (waited[1].revents != 0) return {ErrorCode::kAborted, "asked to end before all workers were started"};
    supervisor::Event event{};
    const ssize_t size = recv(socket_.get(), &event, sizeof event, MSG_DONTWAIT);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size != static_cast<ssize_t>(sizeof event)) return supervisor_gone();
    if (event.kind == supervisor::EventKind::kStartFailed) {
      return start_failure(event.index, commands[static_cast<std::size_t>(event.index)], event.detail);
    }
    if (event.kind != supervisor::EventKind::kStarted) {
      return supervisor_failure(Status::from_errno("the process that supervises the ranks cannot work", event.detail));
    }
    pids_[i] = event.detail;
    started_[i] = time_point(event.monotonic_ns);
    ++running_;
    ++i;
  }
  return {};
}

void ProcessTree::wake_supervisor() const {
  if (supervisor_ > 0) kill(supervisor_, SIGCONT);
}

void ProcessTree::restart_clocks() {
  started_.assign(started_.size(), std::chrono::steady_clock::now());
}

Result<std::optional<Exit>> ProcessTree::next_exit() {
  supervisor::Event event{};
  const ssize_t size = recv(socket_.get(), &event, sizeof event, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<Exit>();
  if (size != static_cast<ssize_t>(sizeof event) || event.kind != supervisor::EventKind::kExited) {
    running_ = 0;
    return supervisor_gone();
  }
  const auto index = static_cast<std::size_t>(event.index);
  Exit exit;
  exit.index = event.index;
  exit.pid = pids_[index];
  exit.when = time_point(event.monotonic_ns);
  exit.run_time = exit.when - started_[index];
  if (event.code == CLD_EXITED) {
    exit.code = event.detail;
  } else {
    exit.signal = event.detail;
    exit.core_dumped = event.code == CLD_DUMPED;
  }
  --running_;
  return std::optional<Exit>(exit);
}

Status ProcessTree::send_order(int kind, int signal_number, int worker, std::chrono::milliseconds limit) {
  kill(supervisor_, SIGCONT);  // somebody may have stopped it
  const Order order{static_cast<OrderKind>(kind), signal_number, worker, static_cast<std::int32_t>(limit.count())};
  while (send(socket_.get(), &order, sizeof order, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return Status::from_errno("cannot reach the process that supervises the ranks", errno);
  }
  return {};
}

Status ProcessTree::signal(int number, std::optional<int> index) {
  const int worker = index.value_or(supervisor::kEveryWorker);
  return send_order(static_cast<int>(OrderKind::kSignal), number, worker, std::chrono::milliseconds(0));
}

Status ProcessTree::await_empty(std::chrono::milliseconds limit) {
  // The supervisor reports at the limit, or a little later.
  const Deadline deadline = Deadline::after(limit + kSupervisorGrace);
  std::vector<pid_t> alive;
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, poll_until(socket_.get(), POLLIN, deadline));
    if (!ready) return stuck(limit, alive, supervisor_);
    supervisor::Event event{};
    const ssize_t size = recv(socket_.get(), &event, sizeof event, MSG_DONTWAIT);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size != static_cast<ssize_t>(sizeof event)) return supervisor_gone();
    if (event.kind == supervisor::EventKind::kAlive) alive.push_back(event.detail);
    if (event.kind == supervisor::EventKind::kStuck) return stuck(limit, alive, supervisor_);
    if (event.kind != supervisor::EventKind::kEmpty) continue;
    reap_supervisor();
    if (alive.empty()) return {};
    return {ErrorCode::kTimeout, fmt::format("{} could not be killed: this user may not signal them (setuid programs?)",
                                             describe_processes(alive))};
  }
}

void ProcessTree::reap_supervisor() {
  const Deadline deadline = Deadline::after(kSupervisorGrace);
  while (waitpid(supervisor_, nullptr, WNOHANG) == 0 && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Status ProcessTree::end(std::chrono::milliseconds limit) {
  if (!socket_.valid()) return {};
  // Sending fails when the supervisor has exited or is about to. Its last messages can still be read.
  (void)send_order(static_cast<int>(OrderKind::kEnd), 0, supervisor::kEveryWorker, limit);
  const Status status = await_empty(limit);
  socket_.reset();
  running_ = 0;
  if (status.code() == ErrorCode::kInternal) reap_supervisor();
  return status;
}

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

std::string describe_exit(const Exit& exit) {
  if (exit.signal == 0) return fmt::format("exit code {}", exit.code);
  const bool has_name = sigabbrev_np(exit.signal) != nullptr;  // a real-time signal has none
  const std::string signal =
      has_name ? fmt::format("signal {} ({})", signal_name(exit.signal), exit.signal) : signal_name(exit.signal);
  return signal + (exit.core_dumped ? ", core dumped" : "");
}

}  // namespace lockstep::launch
