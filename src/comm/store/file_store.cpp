#include "lockstep/comm/store/file_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "comm/store/file_lock.h"
#include "comm/store/key_value_table.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/store/limits.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kMagic = "LKSTEPF1";

enum class RecordKind : std::uint32_t { kSet = 1, kErase = 2, kAppend = 3 };

// Followed by the key and the value. The checksum covers all that follows it.
struct RecordHeader {
  std::uint32_t checksum = 0;
  std::uint32_t kind = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
};

std::uint32_t checksum_of(std::string_view record) {
  const auto body = record.substr(sizeof(RecordHeader::checksum));
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
}

std::string make_record(RecordKind kind, std::string_view key, std::string_view value) {
  RecordHeader header{0, static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(key.size()),
                      static_cast<std::uint32_t>(value.size())};
  std::string record(sizeof header, '\0');
  std::memcpy(record.data(), &header, sizeof header);
  record.append(key).append(value);
  header.checksum = checksum_of(record);
  std::memcpy(record.data(), &header, sizeof header);
  return record;
}

Status write_all(int fd, std::string_view bytes, off_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Status::from_errno(fmt::format("cannot write store file {}", path), errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
  return {};
}

Status read_all(int fd, std::string& bytes, off_t offset, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(fd, bytes.data() + done, bytes.size() - done, offset + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status::from_errno(fmt::format("cannot read store file {}", path), errno);
    if (count == 0) {
      return {ErrorCode::kCorrupt, fmt::format("store file {} became shorter while it was read; do not change it from "
                                               "outside",
                                               path)};
    }
    done += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

// The log of one open file, and the table that its records have made so far.
class FileStore::Log {
 public:
  static Result<std::unique_ptr<Log>> open(std::string path);
  ~Log();

  // Runs `look(table)` on the newest contents; answers how far into the file they reach.
  template <typename Look>
  Result<off_t> read(Look look) {
    MutexLock guard(mutex_);
    LOCKSTEP_ASSIGN_OR_RETURN(const FileLock lock, FileLock::acquire(fd_.get(), LockMode::kShared, path_));
    LOCKSTEP_RETURN_IF_ERROR(catch_up());
    look(std::as_const(table_));
    return end_;
  }

  // Runs `change(table, write)` on the newest contents; `write` appends a record and applies it.
  template <typename Change>
  Status update(Change change) {
    MutexLock guard(mutex_);
    LOCKSTEP_ASSIGN_OR_RETURN(const FileLock lock, FileLock::acquire(fd_.get(), LockMode::kExclusive, path_));
    LOCKSTEP_RETURN_IF_ERROR(catch_up());
    return change(std::as_const(table_), [this](RecordKind kind, std::string_view key, std::string_view value) {
      LOCKSTEP_RETURN_IF_ERROR(write_all(fd_.get(), make_record(kind, key, value), end_, path_));
      return catch_up();
    });
  }

  // Whether the file has grown since a read() answered `seen`. That is the caller's own: other threads may have read
  // on, or written, through this object since.
  bool has_news(off_t seen) const {
    struct stat info {};
    return ::fstat(fd_.get(), &info) != 0 || info.st_size != seen;
  }

  const std::string& path() const { return path_; }

 private:
  Log(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  // Joins the others that have the file open, or starts it anew when nobody has.
  Result<bool> join();
  Status start_anew();
  Status catch_up();
  Status apply(std::string_view pending, std::size_t& used);
  Status corrupt(std::size_t used, std::string_view what) const;

  const std::string path_;
  Fd fd_;
  Mutex mutex_;
  KeyValueTable table_;  // guarded by mutex_, as is end_
  off_t end_ = 0;        // what has been read
};

Result<std::unique_ptr<FileStore::Log>> FileStore::Log::open(std::string path) {
  while (true) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) return Status::from_errno(fmt::format("cannot open store file {}", path), errno);
    std::unique_ptr<Log> log(new Log(path, std::move(fd)));
    LOCKSTEP_ASSIGN_OR_RETURN(const bool joined, log->join());
    if (joined) return log;
    log->fd_.reset();  // the last user removed it between our open and our lock: take the new one
  }
}

Result<bool> FileStore::Log::join() {
  LOCKSTEP_ASSIGN_OR_RETURN(const FileLock lock, FileLock::acquire(fd_.get(), LockMode::kExclusive, path_));
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return Status::from_errno(fmt::format("cannot stat store file {}", path_), errno);
  if (info.st_nlink == 0) return false;
  std::string start(std::min<std::size_t>(kMagic.size(), static_cast<std::size_t>(info.st_size)), '\0');
  LOCKSTEP_RETURN_IF_ERROR(read_all(fd_.get(), start, 0, path_));
  // A creator that was killed may have left a part of the mark.
  if (kMagic.substr(0, start.size()) != start) {
    return Status(ErrorCode::kCorrupt, fmt::format("{} at offset 0: this is no Lockstep store file (expected it to "
                                                   "start with '{}'); name a path that does not exist yet",
                                                   path_, kMagic));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const bool alone, try_lock(fd_.get(), LockByte::kPresence, LockMode::kExclusive, path_));
  if (alone) LOCKSTEP_RETURN_IF_ERROR(start_anew());
  LOCKSTEP_ASSIGN_OR_RETURN(const bool shared, try_lock(fd_.get(), LockByte::kPresence, LockMode::kShared, path_));
  if (!shared) {
    return Status(ErrorCode::kInternal, fmt::format("store file {} is locked exclusively by another program", path_));
  }
  end_ = static_cast<off_t>(kMagic.size());
  return true;
}

Status FileStore::Log::start_anew() {
  if (::ftruncate(fd_.get(), 0) != 0) {
    return Status::from_errno(fmt::format("cannot empty store file {}", path_), errno);
  }
  return write_all(fd_.get(), kMagic, 0, path_);
}

FileStore::Log::~Log() {
  if (!fd_.valid() || end_ == 0) return;
  // Joining and leaving happen under the data lock, so exactly one of several that leave together is the last.
  const auto lock = FileLock::acquire(fd_.get(), LockMode::kExclusive, path_);
  if (!lock.ok()) return;
  const auto alone = try_lock(fd_.get(), LockByte::kPresence, LockMode::kExclusive, path_);
  if (alone.ok() && alone.value()) {
    ::unlink(path_.c_str());
  } else {
    unlock(fd_.get(), LockByte::kPresence);
  }
}

Status FileStore::Log::catch_up() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return Status::from_errno(fmt::format("cannot stat store file {}", path_), errno);
  if (info.st_nlink == 0) {
    return {ErrorCode::kNotFound, fmt::format("store file {} was removed while in use; start the job again", path_)};
  }
  if (info.st_size < end_) return corrupt(0, "the file became shorter");
  std::string pending(static_cast<std::size_t>(info.st_size - end_), '\0');
  LOCKSTEP_RETURN_IF_ERROR(read_all(fd_.get(), pending, end_, path_));
  std::size_t used = 0;
  while (used < pending.size()) LOCKSTEP_RETURN_IF_ERROR(apply(pending, used));
  end_ = info.st_size;
  return {};
}

Status FileStore::Log::apply(std::string_view pending, std::size_t& used) {
  const auto rest = pending.substr(used);
  RecordHeader header;
  if (rest.size() < sizeof header) return corrupt(used, "torn record (a writer was killed?)");
  std::memcpy(&header, rest.data(), sizeof header);
  if (header.key_bytes > kMaxKeyBytes || header.value_bytes > kMaxValueBytes) return corrupt(used, "impossible length");
  const std::size_t bytes = sizeof header + header.key_bytes + header.value_bytes;
  if (rest.size() < bytes) return corrupt(used, "torn record (a writer was killed?)");
  if (checksum_of(rest.substr(0, bytes)) != header.checksum) return corrupt(used, "checksum does not match");
  const auto key = rest.substr(sizeof header, header.key_bytes);
  const auto value = rest.substr(sizeof header + header.key_bytes, header.value_bytes);
  switch (static_cast<RecordKind>(header.kind)) {
    case RecordKind::kSet: LOCKSTEP_RETURN_IF_ERROR(table_.set(key, value)); break;
    case RecordKind::kErase: table_.erase(key); break;
    case RecordKind::kAppend: LOCKSTEP_RETURN_IF_ERROR(table_.append(key, value)); break;
    default: return corrupt(used, "unknown kind of record");
  }
  used += bytes;
  return {};
}

Status FileStore::Log::corrupt(std::size_t used, std::string_view what) const {
  return {ErrorCode::kCorrupt,
          fmt::format("store file {} at offset {}: {}; stop the job's other ranks, remove the file "
                      "and start again",
                      path_, end_ + static_cast<off_t>(used), what)};
}

FileStore::FileStore(std::unique_ptr<Log> log) : log_(std::move(log)) {}
FileStore::~FileStore() = default;

Result<std::shared_ptr<FileStore>> FileStore::open(std::string path) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto log, Log::open(std::move(path)));
  return std::shared_ptr<FileStore>(new FileStore(std::move(log)));
}

Status FileStore::set(std::string_view key, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, value.size()));
  return log_->update([&](const KeyValueTable&, auto write) { return write(RecordKind::kSet, key, value); });
}

Result<Bytes> FileStore::get(std::string_view key, Deadline deadline) {
  // A key may be deleted again between the wait and the look.
  while (true) {
    const std::string name(key);
    LOCKSTEP_RETURN_IF_ERROR(wait({&name, 1}, deadline));
    std::optional<Bytes> value;
    const auto read = log_->read([&](const KeyValueTable& table) {
      if (const Bytes* found = table.find(key)) value = *found;
    });
    LOCKSTEP_RETURN_IF_ERROR(read.status());
    if (value) return *std::move(value);
  }
}

Result<std::int64_t> FileStore::add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = 0;
  LOCKSTEP_RETURN_IF_ERROR(log_->update([&](const KeyValueTable& table, auto write) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(sum, table.sum(key, amount));
    return write(RecordKind::kSet, key, std::to_string(sum));
  }));
  return sum;
}

Result<Bytes> FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, desired.size()));
  Bytes result;
  LOCKSTEP_RETURN_IF_ERROR(log_->update([&](const KeyValueTable& table, auto write) -> Status {
    if (table.matches(key, expected)) LOCKSTEP_RETURN_IF_ERROR(write(RecordKind::kSet, key, desired));
    if (const Bytes* found = table.find(key)) result = *found;
    return {};
  }));
  return result;
}

Status FileStore::append(std::string_view key, std::string_view value) {
  return log_->update([&](const KeyValueTable& table, auto write) -> Status {
    LOCKSTEP_RETURN_IF_ERROR(table.check_append(key, value));
    return write(RecordKind::kAppend, key, value);
  });
}

Status FileStore::wait(std::span<const std::string> keys, Deadline deadline) {
  auto pause = std::chrono::microseconds(100);
  while (true) {
    Status late;
    bool complete = false;
    const auto seen = log_->read([&](const KeyValueTable& table) {
      complete = table.first_missing(keys) == nullptr;
      if (!complete && deadline.expired()) late = table.timeout(keys, fmt::format("store file {}", log_->path()));
    });
    LOCKSTEP_RETURN_IF_ERROR(seen.status());
    if (complete || !late.ok()) return late;
    // Other machines' writes send no event here, so look again, less and less often.
    while (!log_->has_news(seen.value()) && !deadline.expired()) {
      std::this_thread::sleep_for(std::min(std::chrono::nanoseconds(pause), deadline.remaining()));
      pause = std::min(pause * 2, std::chrono::microseconds(10000));
    }
  }
}

Result<bool> FileStore::check(std::span<const std::string> keys) {
  bool complete = false;
  const auto read = log_->read([&](const KeyValueTable& table) { complete = table.first_missing(keys) == nullptr; });
  LOCKSTEP_RETURN_IF_ERROR(read.status());
  return complete;
}

Result<bool> FileStore::delete_key(std::string_view key) {
  bool existed = false;
  LOCKSTEP_RETURN_IF_ERROR(log_->update([&](const KeyValueTable& table, auto write) -> Status {
    existed = table.find(key) != nullptr;
    return existed ? write(RecordKind::kErase, key, "") : Status();
  }));
  return existed;
}

Result<std::int64_t> FileStore::num_keys() {
  std::int64_t count = 0;
  const auto read = log_->read([&](const KeyValueTable& table) { count = static_cast<std::int64_t>(table.size()); });
  LOCKSTEP_RETURN_IF_ERROR(read.status());
  return count;
}

}  // namespace lockstep::comm
