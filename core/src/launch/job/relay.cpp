#include "launch/job/relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/poll.h"
#include "launch/output/log_files.h"
#include "launch/output/worker_stream.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

constexpr int kMostReads = 1024;  // of 64 KiB; a pipe holds 1 MiB at most, unless root has made it larger

}  // namespace

Result<Fd> Relay::make_channel(WorkerStream::Settings& settings) {
  if (settings.terminal) {
    Result<Pty> pty = open_pty();
    if (pty.ok()) {
      workers_ends_.push_back(std::move(pty.value().writer));
      return std::move(pty.value().reader);
    }
    settings.terminal = false;
    if (!std::exchange(said_no_terminals_, true)) {
      log::info("workers write to pipes, so lines of C and C++ programs may come late: " + pty.status().message());
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(FdPair pipe, make_pipe("cannot make a pipe for a worker's output"));
  workers_ends_.push_back(std::move(pipe.writer));
  return std::move(pipe.reader);
}

Result<Relay::OpenFile> Relay::open_log(const JobOptions& options, const JobSpec& job, int rank, const char* stream) {
  const std::function<Result<OpenFile>()> open = [folder = options.log_dir, run_id = job.run_id,
                                                  attempt = job.restart_count, rank, stream,
                                                  what_begins = what_begins_]() -> Result<OpenFile> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::string path, make_log_path(folder, run_id, attempt, rank, stream));
    LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, open_log_file(path, what_begins));
    struct stat info {};
    const bool is_known = fstat(fd.get(), &info) == 0;
    return OpenFile{std::move(path), std::move(fd), is_known ? static_cast<std::uint64_t>(info.st_size) : 0};
  };
  return logs_->call(open, signals_fd_, Deadline::never());
}

Status Relay::connect_stream(const JobOptions& options, const JobSpec& job, int local_rank, Streams stream,
                             Command& command) {
  const bool is_err = stream == Streams::kErr;
  int& fd = is_err ? command.stderr_fd : command.stdout_fd;
  const bool to_terminal = !is_err && options.stdout_terminals;
  const bool tee = includes(options.tee.of(local_rank), stream);
  const bool to_file = tee || includes(options.redirects.of(local_rank), stream);
  Console& console = is_err ? consoles_.err() : consoles_.out();
  const bool alone = job.world_size == 1;
  const std::vector<int>& chosen = options.shown_local_ranks;
  const bool shown = chosen.empty() || std::find(chosen.begin(), chosen.end(), local_rank) != chosen.end();
  // A single worker inherits our streams. Its stderr is still relayed for the failure report, except on a terminal or
  // when stdout and stderr are the same file, where the order of both matters.
  if (!to_file && alone && shown && (!is_err || console.terminal() || consoles_.same())) return {};

  OpenFile file;
  if (to_file) {
    LOCKSTEP_ASSIGN_OR_RETURN(file, open_log(options, job, job.first_rank + local_rank, is_err ? "stderr" : "stdout"));
  }
  Source& source = stderr_[local_rank];
  if (to_file && !tee && !to_terminal) {
    fd = file.fd.get();
    workers_files_.push_back(std::move(file.fd));
    if (is_err) {
      source.path = file.path;
      source.begin = file.size;
    }
    return {};
  }
  WorkerStream::Settings settings;
  settings.console = shown && (tee || !to_file) ? &console : nullptr;
  settings.close_with_console = !is_err;
  settings.terminal = to_terminal;
  if (!alone) settings.prefix = fmt::format("[rank {}]: ", job.first_rank + local_rank);
  if (alone) {
    settings.style = WorkerStream::Style::kRaw;
  } else if (console.terminal() && job.first_rank + local_rank == 0) {
    settings.style = WorkerStream::Style::kProgress;
  }
  if (is_err) {
    source.tail = std::make_unique<Tail>();
    settings.tail = source.tail.get();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Fd channel, make_channel(settings));
  fd = workers_ends_.back().get();
  const bool terminal = settings.terminal;
  auto log = to_file ? logs_->add(std::move(file.fd), file.path) : nullptr;
  streams_.push_back(std::make_unique<WorkerStream>(std::move(channel), std::move(log), std::move(settings)));
  if (terminal) terminals_[local_rank] = streams_.back().get();
  return {};
}

Status Relay::connect(const JobOptions& options, const JobSpec& job, int local_rank, Command& command) {
  what_begins_ = stderr_.contains(local_rank) ? "a new process, in the place of one that failed," : "another run";
  if (Source& before = stderr_[local_rank]; before.tail != nullptr) earlier_tails_.push_back(std::move(before.tail));
  stderr_[local_rank] = {};
  LOCKSTEP_RETURN_IF_ERROR(connect_stream(options, job, local_rank, Streams::kOut, command));
  LOCKSTEP_RETURN_IF_ERROR(connect_stream(options, job, local_rank, Streams::kErr, command));
  const bool shows_stderr = command.stderr_fd == STDERR_FILENO && consoles_.err().terminal();
  if (terminals_.contains(local_rank) && !shows_stderr) use_dumb_terminal(command.environment);
  return {};
}

void Relay::started() {
  workers_ends_.clear();
  for (Fd& file : workers_files_) logs_->close(std::move(file));
  workers_files_.clear();
}

void Relay::add_to(std::vector<pollfd>& polled) {
  if (logs_ != nullptr) logs_->add_to(polled);
  for (const auto& stream : streams_) {
    if (stream->wants_read()) polled.push_back({stream->fd(), POLLIN, 0});
  }
}

void Relay::serve() {
  const auto now = WorkerStream::Clock::now();
  for (const auto& stream : streams_) {
    if (stream->wants_read()) stream->read_some();
    stream->show_partial_if_due(now);
  }
  if (logs_ != nullptr) logs_->serve();
  consoles_.serve();
  consoles_.flush();
}

std::vector<int> Relay::writers_in_vain() const {
  std::vector<int> workers;
  for (const auto& [local_rank, stream] : terminals_) {
    if (stream->written_in_vain()) workers.push_back(local_rank);
  }
  return workers;
}

Deadline Relay::next_due() const {
  auto due = WorkerStream::Clock::time_point::max();
  for (const auto& stream : streams_) due = std::min(due, stream->partial_due().value_or(due));
  return logs_ != nullptr ? earlier(Deadline::at(due), logs_->next_due()) : Deadline::at(due);
}

void Relay::drain() {
  for (const auto& stream : streams_) {
    // A process that could not be killed may go on writing.
    for (int i = 0; i < kMostReads && stream->open() && stream->read_some(); ++i) {
    }
    if (stream->open()) stream->finish();
  }
  consoles_.flush();
}

std::optional<Tail> Relay::stderr_tail(int local_rank) const {
  const Source& source = stderr_.at(local_rank);
  if (source.tail != nullptr) return *source.tail;
  if (source.path.empty()) return std::nullopt;
  const std::function<Result<std::string>()> read = [path = source.path,
                                                     begin = source.begin]() -> Result<std::string> {
    return read_end_of_file(path, Tail::kNeeded, begin);
  };
  const Result<std::string> end = logs_->call(read, signals_fd_, Deadline::after(logs_->patience()));
  Tail tail;
  tail.append(end.ok() ? end.value() : end.status().message());
  return tail;
}

}  // namespace lockstep::launch
