#include "launch/relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/poll.h"
#include "launch/log_folder.h"

namespace lockstep::launch {
namespace {

constexpr int kMostReads = 1024;  // of 64 KiB; a pipe holds 1 MiB at most, unless root has made it larger

}  // namespace

Status Relay::add_pipe(Fd log_file, WorkerStream::Settings settings, int& fd) {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Status::from_errno("cannot make a pipe for a worker's output", errno);
  fd = ends[1];
  workers_ends_.emplace_back(ends[1]);
  streams_.push_back(std::make_unique<WorkerStream>(Fd(ends[0]), std::move(log_file), std::move(settings)));
  return {};
}

Status Relay::connect_stream(const JobOptions& options, const JobSpec& job, int local_rank, Streams stream, int& fd) {
  const bool is_err = stream == Streams::kErr;
  const bool tee = includes(options.tee.of(local_rank), stream);
  const bool to_file = tee || includes(options.redirects.of(local_rank), stream);
  Console& console = is_err ? consoles_.err() : consoles_.out();
  const bool alone = options.workers == 1;
  // A single worker inherits our streams. Its stderr is still relayed for the failure report, except on a terminal or
  // when stdout and stderr are the same file, where the order of both matters.
  if (!to_file && alone && (!is_err || console.terminal() || consoles_.same())) return {};

  Fd log_file;
  std::string path;
  if (to_file) {
    const int rank = job.first_rank + local_rank;
    LOCKSTEP_ASSIGN_OR_RETURN(
        path, make_log_path(options.log_dir, job.run_id, job.restart_count, rank, is_err ? "stderr" : "stdout"));
    LOCKSTEP_ASSIGN_OR_RETURN(log_file, open_log_file(path));
  }
  Source& source = stderr_[static_cast<std::size_t>(local_rank)];
  if (to_file && !tee) {
    fd = log_file.get();
    workers_ends_.push_back(std::move(log_file));
    if (is_err) source.path = path;
    return {};
  }
  WorkerStream::Settings settings;
  settings.console = &console;
  settings.close_with_console = !is_err;
  settings.log_path = path;
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
  return add_pipe(std::move(log_file), std::move(settings), fd);
}

Status Relay::connect(const JobOptions& options, const JobSpec& job, int local_rank, Command& command) {
  stderr_.emplace_back();
  LOCKSTEP_RETURN_IF_ERROR(connect_stream(options, job, local_rank, Streams::kOut, command.stdout_fd));
  return connect_stream(options, job, local_rank, Streams::kErr, command.stderr_fd);
}

void Relay::add_to(std::vector<pollfd>& polled) {
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
  consoles_.serve();
  consoles_.flush();
}

Deadline Relay::next_due() const {
  auto due = WorkerStream::Clock::time_point::max();
  for (const auto& stream : streams_) due = std::min(due, stream->partial_due().value_or(due));
  return Deadline::at(due);
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

std::optional<std::vector<std::string>> Relay::stderr_tail(int local_rank) const {
  const Source& source = stderr_[static_cast<std::size_t>(local_rank)];
  if (source.tail != nullptr) return source.tail->lines();
  if (source.path.empty()) return std::nullopt;
  Tail tail;
  tail.append(read_end_of_file(source.path, Tail::kMaxBytes));
  return tail.lines();
}

}  // namespace lockstep::launch
