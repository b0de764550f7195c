#include "lockstep/report/summary_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "base/host.h"
#include "base/printable.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "report/append_file.h"
#include "report/tensorboard/events.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;
constexpr std::chrono::seconds kLongestDelay{10};
constexpr std::int64_t kLatest = 9'999'999'999;  // names sort by ten digits

constexpr std::string_view kPrefix = "events.out.tfevents.";

// TensorBoard recognises files by "tfevents" in their names, and reads those of a folder in the order of the names. It
// never goes back. So a new file comes after all that are there, also after those of this second and of faster clocks.
std::int64_t seconds_for_a_name(const std::filesystem::path& folder) {
  auto seconds = static_cast<std::int64_t>(wall_time());
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    std::int64_t of_file = 0;
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), of_file);
    if (of_file >= seconds && of_file < kLatest) seconds = of_file + 1;
  }
  return seconds;
}

Result<AppendFile> new_file(const std::filesystem::path& folder) {
  static std::atomic<int> files{0};
  const std::int64_t seconds = seconds_for_a_name(folder);
  while (true) {
    const std::filesystem::path path =
        folder / fmt::format("{}{:010}.{}.{}.{}", kPrefix, seconds, host_name(), ::getpid(), files.fetch_add(1));
    Result<AppendFile> file = AppendFile::create(path);
    // A process of another container may have the same numbers.
    std::error_code ignored;
    if (file.ok() || !std::filesystem::exists(path, ignored)) return file;
  }
}

}  // namespace

class SummaryWriter::Writer {
 public:
  explicit Writer(AppendFile file) : path_(file.path()), file_(std::move(file)), buffer_(version_record(wall_time())) {}
  ~Writer() { flush(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void add(std::int64_t step, const std::string& value) {
    if (origin_.is_this_process()) add(summary_record(wall_time(), step, value));
  }
  void purge(std::int64_t step) {
    if (!origin_.is_this_process()) return;
    // Twice: one of TensorBoard's readers takes the first START of a folder for the start of the run, and drops
    // nothing.
    const std::string start = start_record(wall_time(), step);
    add(start + start);
  }
  void flush() {
    if (!origin_.is_this_process()) return;
    const MutexLock lock(mutex_);
    write_buffer();
  }
  Status status() const {
    const MutexLock lock(mutex_);
    return file_.status();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  using Clock = std::chrono::steady_clock;

  void add(const std::string& records) LOCKSTEP_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    buffer_ += records;
    if (buffer_.size() >= kMostBytes || Clock::now() - written_ >= kLongestDelay) write_buffer();
  }
  void write_buffer() LOCKSTEP_REQUIRES(mutex_) {
    if (!buffer_.empty()) file_.append(buffer_);
    buffer_.clear();
    written_ = Clock::now();
  }

  Origin origin_;
  const std::filesystem::path path_;
  mutable Mutex mutex_;
  AppendFile file_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string buffer_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point written_ LOCKSTEP_GUARDED_BY(mutex_) = Clock::now();
};

SummaryWriter::SummaryWriter() = default;
SummaryWriter::SummaryWriter(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;
SummaryWriter::~SummaryWriter() = default;

Result<SummaryWriter> SummaryWriter::open(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Status::from_errno("cannot make the folder", error.value()).with_context(printable(folder.native()));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(AppendFile file, new_file(folder));
  auto writer = std::make_unique<Writer>(std::move(file));
  writer->flush();
  return SummaryWriter(std::move(writer));
}

void SummaryWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  if (writer_ != nullptr) writer_->add(step, scalar_value(valid_utf8(tag), value));
}

void SummaryWriter::purge(std::int64_t step) {
  if (writer_ != nullptr) writer_->purge(step);
}

void SummaryWriter::flush() {
  if (writer_ != nullptr) writer_->flush();
}

Status SummaryWriter::status() const {
  return writer_ == nullptr ? Status() : writer_->status();
}

std::filesystem::path SummaryWriter::path() const {
  return writer_ == nullptr ? std::filesystem::path() : writer_->path();
}

}  // namespace lockstep::report
