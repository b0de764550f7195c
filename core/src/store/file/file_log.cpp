#include "store/file/file_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/store/limits.h"
#include "store/file/private_file.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kMagic = "LKSTEPF1";
constexpr auto kPatience = std::chrono::minutes(1);
constexpr auto kPatienceOnceStuck = std::chrono::milliseconds(200);
constexpr auto kGrace = std::chrono::seconds(5);

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

std::string make_record(FileLog::RecordKind kind, std::string_view key, std::string_view value) {
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

Result<std::unique_ptr<FileLog, LeakInForks>> FileLog::open(std::string path) {
  while (true) {
    // O_NOFOLLOW: in a folder that everybody may write to, a link may be another user's. O_NONBLOCK: not to wait for a
    // FIFO's other end.
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!fd.valid()) return Status::from_errno(fmt::format("cannot open store file {}", path), errno);
    LOCKSTEP_RETURN_IF_ERROR(check_private(fd.get(), path).with_context("the store file"));
    fd.keep_from_forks();
    ::fchmod(fd.get(), 0600);  // its contents are for the ranks alone
    std::unique_ptr<FileLog, LeakInForks> log(new FileLog(path, std::move(fd)));
    const Status joined = log->locked(LockMode::kExclusive, Deadline::after(kPatience),
                                      [&]() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return log->join(); });
    if (joined.ok()) return log;
    if (joined.code() != ErrorCode::kAborted) return joined;
    // Its last user removed it between our open and our lock: open the new one.
  }
}

FileLog::~FileLog() {
  if (end_ == 0) return;
  // A frozen process that holds the lock has the file open, so this store is not the last.
  const auto limit = stuck_ ? std::chrono::milliseconds(0) : kPatienceOnceStuck;
  static_cast<void>(locked(LockMode::kExclusive, Deadline::after(limit),
                           [this]() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return leave(); }));
}

Status FileLog::join() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return Status::from_errno(fmt::format("cannot stat store file {}", path_), errno);
  if (info.st_nlink == 0) return {ErrorCode::kAborted, "removed"};
  std::string start(std::min<std::size_t>(kMagic.size(), static_cast<std::size_t>(info.st_size)), '\0');
  LOCKSTEP_RETURN_IF_ERROR(read_all(fd_.get(), start, 0, path_));
  // A process that was killed while it made the file may have left a part of the magic bytes.
  if (kMagic.substr(0, start.size()) != start) {
    return {ErrorCode::kCorrupt, fmt::format("{} at offset 0: this is no Lockstep store file (expected it to start "
                                             "with '{}'); name a path that does not exist yet",
                                             path_, kMagic)};
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const bool alone, try_lock(fd_.get(), LockByte::kPresence, LockMode::kExclusive, path_));
  if (alone) LOCKSTEP_RETURN_IF_ERROR(make_empty());
  LOCKSTEP_ASSIGN_OR_RETURN(const bool shared, try_lock(fd_.get(), LockByte::kPresence, LockMode::kShared, path_));
  if (!shared) {
    return {ErrorCode::kInternal, fmt::format("store file {} is locked exclusively by another program", path_)};
  }
  end_ = static_cast<off_t>(kMagic.size());
  return {};
}

Status FileLog::make_empty() {
  if (::ftruncate(fd_.get(), 0) != 0) {
    return Status::from_errno(fmt::format("cannot empty store file {}", path_), errno);
  }
  const Status marked = write_all(fd_.get(), kMagic, 0, path_);
  if (!marked.ok()) ::unlink(path_.c_str());  // stores that wait for the lock find it removed and make a new one
  return marked;
}

// Stores join and leave under the data lock, so exactly one of several that leave together is the last.
Status FileLog::leave() {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool alone, try_lock(fd_.get(), LockByte::kPresence, LockMode::kExclusive, path_));
  if (alone) {
    ::unlink(path_.c_str());
  } else {
    unlock(fd_.get(), LockByte::kPresence);
  }
  return {};
}

Deadline FileLog::patience(Deadline deadline) const {
  const auto patience = stuck_ ? Deadline::after(kPatienceOnceStuck) : Deadline::after(kPatience);
  return deadline.is_never() ? patience : earlier(patience, Deadline::after(deadline.remaining() + kGrace));
}

Status FileLog::locked(LockMode mode, Deadline deadline, const std::function<Status()>& body) {
  if (!origin_.is_this_process()) {
    return {
        ErrorCode::kUnsupported,
        fmt::format("this process is a fork of the one that has opened store file {}; it has to open the file itself",
                    path_)};
  }
  // Tried again and again, because a blocking fcntl has no deadline and a stopped process could hold the lock forever.
  for (auto pause = std::chrono::microseconds(20);; pause = std::min(pause * 2, std::chrono::microseconds(2000))) {
    {
      const MutexLock guard(mutex_);
      LOCKSTEP_ASSIGN_OR_RETURN(const auto lock, FileLock::try_acquire(fd_.get(), mode, path_));
      if (lock) {
        stuck_ = false;
        return body();
      }
    }
    if (deadline.expired()) break;
    std::this_thread::sleep_for(pause);
  }
  stuck_ = true;
  return {ErrorCode::kTimeout,
          fmt::format("store file {} stayed locked by another process; is one of the ranks stopped "
                      "or its file server away?",
                      path_)};
}

Result<off_t> FileLog::read(Deadline deadline, const Look& look) {
  off_t seen = 0;
  bool rest = false;
  LOCKSTEP_RETURN_IF_ERROR(locked(LockMode::kShared, deadline, [&]() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(rest, catch_up());
    if (!rest) look(table_);
    seen = end_;
    return {};
  }));
  if (!rest) return seen;
  // Only a change may cut off the rest: make one that changes nothing.
  LOCKSTEP_RETURN_IF_ERROR(
      update(deadline, [&](const KeyValueTable& table, const Write&) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS -> Status {
        look(table);
        seen = end_;
        return {};
      }));
  return seen;
}

Status FileLog::update(Deadline deadline, const Change& change) {
  const Write write = [this](RecordKind kind, std::string_view key, std::string_view value)
                          LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return append(kind, key, value); };
  return locked(LockMode::kExclusive, deadline, [&]() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool rest, catch_up());
    if (rest) LOCKSTEP_RETURN_IF_ERROR(cut_off_rest());
    return change(table_, write);
  });
}

Result<bool> FileLog::catch_up() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return Status::from_errno(fmt::format("cannot stat store file {}", path_), errno);
  if (info.st_nlink == 0) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("store file {} was removed while in use; start the job again", path_));
  }
  if (info.st_size < end_) return corrupt("the file became shorter");
  std::string pending(static_cast<std::size_t>(info.st_size - end_), '\0');
  LOCKSTEP_RETURN_IF_ERROR(read_all(fd_.get(), pending, end_, path_));
  std::string_view rest = pending;
  while (!rest.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t bytes, apply_first(rest));
    if (bytes == 0) return true;
    rest.remove_prefix(bytes);
    end_ += static_cast<off_t>(bytes);
  }
  return false;
}

Result<std::size_t> FileLog::apply_first(std::string_view rest) {
  RecordHeader header;
  if (rest.size() < sizeof header) return std::size_t{0};
  std::memcpy(&header, rest.data(), sizeof header);
  if (header.key_bytes > kMaxKeyBytes || header.value_bytes > kMaxValueBytes) return corrupt("impossible length");
  const std::size_t bytes = sizeof header + header.key_bytes + header.value_bytes;
  if (rest.size() < bytes) return std::size_t{0};
  if (checksum_of(rest.substr(0, bytes)) != header.checksum) return corrupt("checksum does not match");
  const auto key = rest.substr(sizeof header, header.key_bytes);
  const auto value = rest.substr(sizeof header + header.key_bytes, header.value_bytes);
  if (header.kind < 1 || header.kind > 3) return corrupt("unknown kind of record");
  table_.apply(static_cast<RecordKind>(header.kind), key, value);
  return bytes;
}

Status FileLog::append(RecordKind kind, std::string_view key, std::string_view value) {
  const std::string record = make_record(kind, key, value);
  Status written = write_all(fd_.get(), record, end_, path_);
  if (!written.ok()) {
    // The first error is the one to report. If cutting off fails too, the next store that locks the file does it.
    static_cast<void>(cut_off_rest());
    return written;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t bytes, apply_first(record));
  end_ += static_cast<off_t>(bytes);
  return {};
}

Status FileLog::cut_off_rest() {
  if (::ftruncate(fd_.get(), end_) == 0) return {};
  return Status::from_errno(fmt::format("cannot cut off what a killed process left in store file {}", path_), errno);
}

bool FileLog::has_news(off_t seen) const {
  struct stat info {};
  return ::fstat(fd_.get(), &info) != 0 || info.st_size != seen;
}

Status FileLog::corrupt(std::string_view what) const {
  return {ErrorCode::kCorrupt,
          fmt::format("store file {} at offset {}: {}; stop the job's other ranks, remove the file "
                      "and start again",
                      path_, end_, what)};
}

}  // namespace lockstep::comm
