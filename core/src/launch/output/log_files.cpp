#include "launch/output/log_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <span>

#include "base/poll.h"
#include "base/regular_file.h"
#include "launch/output/background_writer.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep::launch {
namespace {

Status unwritable(const std::string& path, int error) {
  return Status::from_errno(fmt::format("cannot write logs to '{}' (--log-dir)", path), error);
}

using Clock = Deadline::Clock;

// As for a console, by file.
constexpr std::size_t kQueueLimit = std::size_t{512} << 10;
constexpr std::size_t kHardLimit = std::size_t{4} << 20;
constexpr std::size_t kChunk = std::size_t{64} << 10;  // one file's share before it is the next one's turn

}  // namespace

Result<Fd> open_log_file(const std::string& path, std::string_view what_begins) {
  // O_NONBLOCK: not to wait for the other end of a FIFO.
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  const int error = errno;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Status(ErrorCode::kIo,
                  fmt::format("cannot write logs to '{}' (--log-dir): expected a regular file, found {}", path,
                              kind_of_file(info.st_mode)));
  }
  if (!file.valid()) return unwritable(path, error);
  if (info.st_size > 0) {
    std::array<char, 32> now{};
    const std::time_t seconds = std::time(nullptr);
    std::tm local{};
    if (localtime_r(&seconds, &local) != nullptr) std::strftime(now.data(), now.size(), "%F %T", &local);
    const std::string mark = fmt::format("\nlockstep: {} begins here, {}\n", what_begins, now.data());
    // A full disk is told of when the worker's lines do not fit either.
    static_cast<void>(!write(file.get(), mark.data(), mark.size()));
  }
  return file;
}

std::string log_folder_of(const std::string& log_dir, const std::string& run_id) {
  std::string name = run_id;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool plain = std::isalnum(static_cast<unsigned char>(name[i])) != 0 || name[i] == '-' || name[i] == '_';
    if (!plain && (name[i] != '.' || i == 0)) name[i] = '_';
  }
  return fmt::format("{}/{}", log_dir, name);
}

Result<std::string> make_log_path(const std::string& log_dir, const std::string& run_id, int attempt, int rank,
                                  const char* stream) {
  const std::string folder = fmt::format("{}/attempt_{}/{}", log_folder_of(log_dir, run_id), attempt, rank);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return unwritable(folder, error.value());
  return fmt::format("{}/{}.log", folder, stream);
}

std::string temporary_folder() {
  return Environment::of_process().get("TMPDIR").value_or("/tmp");
}

Result<std::string> make_temporary_log_dir(const std::string& parent) {
  std::string path = parent + "/lockstep_logs_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return Status::from_errno(
        fmt::format("cannot make a folder for logs in '{}' (TMPDIR; --log-dir names another place)", parent), errno);
  }
  return path;
}

std::string read_end_of_file(const std::string& path, std::size_t bytes, std::uint64_t begin) {
  const auto file = RegularFile::open(path);
  if (!file.ok()) return {};
  const std::uint64_t size = file.value().size();
  std::string text(std::min<std::uint64_t>(bytes, size - std::min(begin, size)), '\0');
  const ssize_t got = pread(file.value().fd(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

struct LogFile::Entry {
  Fd file;
  const std::string path;
  // Used by the thread only.
  LossyFile lossy{};
  bool failed = false;  // a warning was given
  // Guarded by the mutex of State.
  std::string queue{};
  std::size_t under_way = 0;
  std::size_t dropped_lines = 0;
  bool posted = false;    // State::tasks has a task for it
  bool released = false;  // to be closed when the queue is empty

  std::size_t pending() const { return queue.size() + under_way; }
  void note_dropped_lines() {
    if (const std::size_t lines = std::exchange(dropped_lines, 0); lines > 0) {
      queue += fmt::format("\nlockstep: {} lines were dropped here: the disk was too slow\n", lines);
    }
  }
};

struct LogFiles::State {
  using EntryPtr = std::shared_ptr<LogFile::Entry>;

  // In the thread.
  void run();
  void notify() const {
    const std::uint64_t one = 1;
    while (::write(event.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  void write_some(const EntryPtr& entry);
  void close_entry(LogFile::Entry& entry);
  void report(LogFile::Entry& entry, int error) const;

  void post(std::function<void()> task) LOCKSTEP_REQUIRES(mutex) {
    if (tasks.empty() && !busy) moved_at = Clock::now();
    tasks.push_back(std::move(task));
    changed.notify_all();
  }
  void post_entry(const EntryPtr& entry) LOCKSTEP_REQUIRES(mutex) {
    entry->posted = true;
    post([this, entry] { write_some(entry); });
  }
  bool idle() const LOCKSTEP_REQUIRES(mutex) { return tasks.empty() && !busy; }

  Fd event;
  std::atomic<bool> stop{false};
  mutable Mutex mutex;
  CondVar changed;
  std::deque<std::function<void()>> tasks LOCKSTEP_GUARDED_BY(mutex);
  bool busy LOCKSTEP_GUARDED_BY(mutex) = false;
  bool awaited LOCKSTEP_GUARDED_BY(mutex) = false;          // the launcher wants the event at the next move
  Clock::time_point moved_at LOCKSTEP_GUARDED_BY(mutex){};  // a task has ended, or came when there was none
  std::size_t bytes LOCKSTEP_GUARDED_BY(mutex) = 0;         // added and not written
  std::size_t files LOCKSTEP_GUARDED_BY(mutex) = 0;         // not closed
};

void LogFiles::State::run() {
  std::function<void()> task;
  for (;;) {
    {
      MutexLock lock(mutex);
      while (!stop && tasks.empty()) changed.wait(mutex);
      if (stop) break;
      task = std::move(tasks.front());
      tasks.pop_front();
      busy = true;
    }
    task();
    task = nullptr;
    MutexLock lock(mutex);
    busy = false;
    moved_at = Clock::now();
    if (std::exchange(awaited, false)) notify();
  }
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(mutex);
    dropped.swap(tasks);
  }
  // Here this thread closes the files of these tasks: that may block too.
}

void LogFiles::State::write_some(const EntryPtr& entry) {
  std::string chunk;
  {
    MutexLock lock(mutex);
    entry->under_way = std::min(entry->queue.size(), kChunk);
    chunk.assign(entry->queue, 0, entry->under_way);
    entry->queue.erase(0, entry->under_way);
  }
  if (chunk.empty()) return close_entry(*entry);
  report(*entry, entry->lossy.write(entry->file.get(), chunk, &stop));
  MutexLock lock(mutex);
  bytes -= std::exchange(entry->under_way, 0);
  entry->posted = false;
  if (!stop && (!entry->queue.empty() || entry->released)) post_entry(entry);
}

void LogFiles::State::close_entry(LogFile::Entry& entry) {
  // A file server may write, and fail, only now.
  report(entry, ::close(entry.file.release()) == 0 || errno == EINTR ? 0 : errno);
  MutexLock lock(mutex);
  --files;
}

void LogFiles::State::report(LogFile::Entry& entry, int error) const {
  if (error == 0 || stop || std::exchange(entry.failed, true)) return;
  const Status why = Status::from_errno(fmt::format("cannot write log file {}", entry.path), error);
  log::warning(why.message() + "; lines will be missing in it, the job goes on");
}

LogFiles::LogFiles(std::shared_ptr<State> state, OutputThread thread, std::string folder,
                   std::chrono::nanoseconds patience)
    : state_(std::move(state)), thread_(thread), folder_(std::move(folder)), patience_(patience) {}

Result<std::unique_ptr<LogFiles>> LogFiles::start(std::string folder, std::chrono::nanoseconds patience) {
  auto state = std::make_shared<State>();
  state->event.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->event.valid()) return Status::from_errno("cannot make an event descriptor for log files", errno);
  LOCKSTEP_ASSIGN_OR_RETURN(const OutputThread thread, OutputThread::start([state] { state->run(); }));
  return std::unique_ptr<LogFiles>(new LogFiles(std::move(state), thread, std::move(folder), patience));
}

LogFiles::~LogFiles() {
  {
    MutexLock lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  thread_.end();
}

std::unique_ptr<LogFile> LogFiles::add(Fd file, std::string path) {
  auto entry = std::shared_ptr<LogFile::Entry>(new LogFile::Entry{std::move(file), std::move(path)});
  MutexLock lock(state_->mutex);
  ++state_->files;
  return std::unique_ptr<LogFile>(new LogFile(state_, std::move(entry)));
}

void LogFiles::close(Fd file) {
  post([kept = std::make_shared<Fd>(std::move(file))] { kept->reset(); });
}

void LogFiles::post(std::function<void()> task) {
  MutexLock lock(state_->mutex);
  state_->post(std::move(task));
}

Status LogFiles::wait_until_idle(int signals_fd, Deadline deadline) {
  for (;;) {
    {
      MutexLock lock(state_->mutex);
      if (state_->idle()) return {};
      state_->awaited = true;
    }
    if (deadline.expired()) return Status(ErrorCode::kTimeout, fmt::format("log files in '{}' do not answer", folder_));
    std::array<pollfd, 2> polled{{{signals_fd, POLLIN, 0}, {state_->event.get(), POLLIN, 0}}};
    LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, earlier(deadline, next_due())).status());
    serve();
    if (polled[0].revents != 0) {
      return Status(ErrorCode::kAborted, fmt::format("a signal came before log files in '{}' answered", folder_));
    }
  }
}

void LogFiles::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({state_->event.get(), POLLIN, 0});
}

Deadline LogFiles::stands_still_at() const {
  MutexLock lock(state_->mutex);
  return state_->idle() ? Deadline::never() : Deadline::at(state_->moved_at + patience_);
}

Deadline LogFiles::next_due() const {
  return warned_ ? Deadline::never() : stands_still_at();
}

void LogFiles::serve() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(state_->event.get(), &count, sizeof count));
  if (!next_due().expired()) return;
  warned_ = true;
  log::warning(fmt::format(
      "log files in '{}' have not answered for {} s; workers wait for them before they start and when they print much",
      folder_, std::chrono::duration<double>(patience_).count()));
}

void LogFiles::finish(int signals_fd, Deadline deadline) {
  std::array<pollfd, 2> polled{{{signals_fd, POLLIN, 0}, {state_->event.get(), POLLIN, 0}}};
  while (polled[0].revents == 0) {
    {
      MutexLock lock(state_->mutex);
      if (state_->files == 0) return;
      state_->awaited = true;
    }
    const Deadline end = earlier(deadline, stands_still_at());
    if (end.expired() || !poll_until(polled, end).ok()) break;
    std::uint64_t count = 0;
    static_cast<void>(!::read(state_->event.get(), &count, sizeof count));
  }
  const std::size_t missing = unwritten();
  if (missing == 0) return;
  log::warning(fmt::format("log files in '{}' did not take the end of the output in time: {} KiB are missing in them",
                           folder_, (missing + 1023) / 1024));
}

std::size_t LogFiles::unwritten() const {
  MutexLock lock(state_->mutex);
  return state_->bytes;
}

LogFile::~LogFile() {
  MutexLock lock(state_->mutex);
  const std::size_t before = entry_->queue.size();
  entry_->note_dropped_lines();
  state_->bytes += entry_->queue.size() - before;
  entry_->released = true;
  if (!entry_->posted) state_->post_entry(entry_);
}

bool LogFile::full() const {
  MutexLock lock(state_->mutex);
  if (entry_->pending() <= kQueueLimit) return false;
  state_->awaited = true;
  return true;
}

void LogFile::append(std::string_view bytes) {
  if (bytes.empty()) return;
  MutexLock lock(state_->mutex);
  if (entry_->pending() > kHardLimit) {
    entry_->dropped_lines += static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
    return;
  }
  const std::size_t before = entry_->queue.size();
  entry_->note_dropped_lines();
  entry_->queue += bytes;
  state_->bytes += entry_->queue.size() - before;
  if (!entry_->posted) state_->post_entry(entry_);
}

}  // namespace lockstep::launch
