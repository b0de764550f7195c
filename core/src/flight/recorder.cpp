#include "flight/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/host.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep::flight {
namespace {

template <std::size_t kSize>
void set_text(std::array<char, kSize>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), to.begin());
}

// A group's place is read while it is written, by a dump.
void store_words(void* to, const void* from, std::size_t bytes) {
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  std::memcpy(words.data(), from, bytes);
  auto* const target = static_cast<std::uint64_t*>(to);
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::atomic_ref<std::uint64_t>(target[i]).store(words[i], std::memory_order_relaxed);
  }
}

void load_words(void* to, const void* from, std::size_t bytes) {
  auto* const source = static_cast<std::uint64_t*>(const_cast<void*>(from));
  auto* const target = static_cast<std::byte*>(to);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(source[at / sizeof(std::uint64_t)]).load(std::memory_order_relaxed);
    std::memcpy(target + at, &word, sizeof word);
  }
}

bool is_gone(int pid) {
  return kill(pid, 0) != 0 && errno == ESRCH;
}

// The launcher's file is for one process at a time: a worker's children inherit the variable. A process that has
// replaced itself (exec) has its file still.
bool take(Ring& ring) {
  int owner = ring.owner.load();
  if (owner != 0 && owner != getpid() && !is_gone(owner)) return false;
  return ring.owner.compare_exchange_strong(owner, getpid());
}

Ring* map_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return {};
  // Reserves the pages: where memory has run out, a write would end the process.
  if (posix_fallocate(file.get(), 0, sizeof(Ring)) != 0) return nullptr;
  void* const base = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  auto* const ring = static_cast<Ring*>(base);
  if (take(*ring)) return ring;
  munmap(base, sizeof(Ring));
  return nullptr;
}

Ring* map_private() {
  void* const base = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* const ring = static_cast<Ring*>(base);
  ring->owner = getpid();
  return ring;
}

int number_in(const Environment& environment, const char* name) {
  const std::string text = environment.get(name).value_or("0");
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// What an earlier process has left there goes.
void prepare(Ring& ring, const Environment& environment) {
  ring.magic.store(0);
  for (Entry& entry : ring.entries) entry.serial.store(0, std::memory_order_relaxed);
  for (Group& group : ring.groups) group.id = 0;
  ring.version = kVersion;
  ring.rank = -1;
  ring.attempt = number_in(environment, "LOCKSTEP_RESTART_COUNT");
  ring.steady = nanoseconds(Clock::now());
  ring.real =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  ring.dumped = 0;
  set_text(ring.process, "");
  set_text(ring.host, host_name());
  set_text(ring.job, environment.get("TORCHELASTIC_RUN_ID").value_or(""));
  ring.groups_made = 0;
  ring.texts_known = 0;
  ring.operations = 0;
  ring.input = 0;
  ring.steps_done = 0;
  for (Step& step : ring.steps) step.ended = 0;
  ring.magic.store(kMagic, std::memory_order_release);
}

class OwnRing {
 public:
  // Makes it at the first call, in one thread: a file can be taken once only. nullptr: there is no memory for it. It
  // stays mapped until the process ends.
  Ring* ring() {
    std::call_once(made_, [this] {
      const Environment environment = Environment::of_process();
      if (const auto path = environment.get("LOCKSTEP_RECORDER")) ring_ = map_file(*path);
      if (ring_ == nullptr) ring_ = map_private();
      if (ring_ != nullptr) prepare(*ring_, environment);
      ready_.store(ring_, std::memory_order_release);
    });
    return ring_;
  }
  // nullptr as long as ring() was not called.
  Ring* ring_if_made() const { return ready_.load(std::memory_order_acquire); }

  std::atomic<bool> dumped{false};
  Mutex groups;  // held while a place for a group is given away, or marked as left

 private:
  std::once_flag made_;
  Ring* ring_ = nullptr;
  std::atomic<Ring*> ready_{nullptr};
};

OwnRing& own() {
  static constinit OfProcess<OwnRing> ring;
  return ring.get();
}

// The place for a new group: a free one, else that of a group which this rank has left, else that of the oldest group.
std::size_t place_for_group(Ring& ring) {
  const auto order = [](const Group& group) { return std::pair(group.id != 0 && group.left == 0, group.id); };
  const auto first = std::min_element(ring.groups.begin(), ring.groups.end(),
                                      [&](const Group& a, const Group& b) { return order(a) < order(b); });
  return static_cast<std::size_t>(first - ring.groups.begin());
}

void set_ranks(Group& group, std::span<const int> ranks) {
  group.stride = 1;
  if (ranks.empty()) return;
  group.first = ranks.front();
  if (ranks.size() > 1) group.stride = ranks[1] - ranks[0];
  for (std::size_t i = 1; i < ranks.size() && group.stride != 0; ++i) {
    if (ranks[i] - ranks[i - 1] != group.stride) group.stride = 0;
  }
  std::copy_n(ranks.begin(), std::min(ranks.size(), Group::kRanks), group.ranks.begin());
}

// A folder's name: what users call their jobs may hold anything.
std::string file_name(std::string_view text) {
  std::string name(text.substr(0, 100));
  for (char& c : name) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return name.empty() || name.front() == '.' ? "job" + name : name;
}

Status write_file(const std::string& path, const Ring& ring) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  // Under another name first: a file that is cut off must not look like a dump. A rank and its launcher may write the
  // same dump at the same time, each under a name of its own.
  std::string temporary = path + ".tmp.XXXXXX";
  const Fd file(mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.valid()) return Status::from_errno(fmt::format("cannot write the dump '{}'", path), errno);
  const auto* at = reinterpret_cast<const char*>(&ring);
  for (std::size_t left = sizeof ring; left > 0;) {
    const ssize_t written = write(file.get(), at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int reason = written < 0 ? errno : EIO;
      unlink(temporary.c_str());
      return Status::from_errno(fmt::format("cannot write the dump '{}'", path), reason);
    }
    at += written;
    left -= static_cast<std::size_t>(written);
  }
  if (rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int reason = errno;
  unlink(temporary.c_str());
  return Status::from_errno(fmt::format("cannot write the dump '{}'", path), reason);
}

// Writes in a thread of its own, and leaves that thread to itself if the disk does not answer in time: the rank's error
// must not wait for a dead file server.
Status write_in_time(const std::string& path, std::shared_ptr<const Ring> ring) {
  constexpr std::chrono::seconds kTime{5};
  std::packaged_task<Status()> task([path, ring = std::move(ring)] { return write_file(path, *ring); });
  std::future<Status> answer = task.get_future();
  // The program's signals, and those that a write can cause, do not end up in the thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(task));
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return Status::from_errno(fmt::format("cannot start a thread for the dump '{}'", path), error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (answer.wait_for(kTime) == std::future_status::ready) {
    thread.join();
    return answer.get();
  }
  thread.detach();
  return Status(ErrorCode::kTimeout,
                fmt::format("the dump '{}' is not written: the disk has not answered for {} s", path, kTime.count()));
}

}  // namespace

GroupRecord add_group(std::string_view name, std::string_view backend, int rank, int size, std::span<const int> ranks,
                      std::uint64_t identity) {
  OwnRing& mine = own();
  Ring* const ring = mine.ring();
  if (ring == nullptr) return {};
  Group group;
  group.id = ring->groups_made.fetch_add(1, std::memory_order_relaxed) + 1;
  group.rank = rank;
  group.size = size;
  group.identity = identity;
  set_text(group.name, name);
  set_text(group.backend, backend);
  set_ranks(group, ranks);
  {
    MutexLock lock(mine.groups);
    store_words(&ring->groups[place_for_group(*ring)], &group, sizeof group);
  }
  const auto own_rank = static_cast<std::size_t>(rank);
  ring->rank.store(own_rank < ranks.size() ? ranks[own_rank] : rank, std::memory_order_relaxed);
  return {ring, group.id};
}

void GroupRecord::add_text(std::uint32_t number, std::string_view text) const {
  if (ring_ == nullptr || number == 0 || number > kTexts) return;
  std::array<char, kTextBytes> bytes{};
  set_text(bytes, text);
  store_words(&ring_->texts[number - 1], bytes.data(), bytes.size());
  if (ring_->texts_known.load(std::memory_order_relaxed) < number) ring_->texts_known.store(number);
}

void GroupRecord::leave() const {
  if (ring_ == nullptr) return;
  MutexLock lock(own().groups);
  for (Group& group : ring_->groups) {
    if (group.id == group_) std::atomic_ref<std::uint32_t>(group.left).store(1, std::memory_order_relaxed);
  }
}

void end_step() {
  Ring* const ring = own().ring_if_made();
  if (ring == nullptr) return;
  Step& step = ring->steps[ring->steps_done.fetch_add(1, std::memory_order_relaxed) % kSteps];
  step.ended.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  step.input.store(ring->input.load(std::memory_order_relaxed), std::memory_order_relaxed);
  step.ended.store(nanoseconds(Clock::now()), std::memory_order_release);
}

InputTime::~InputTime() {
  Ring* const ring = own().ring_if_made();
  if (ring == nullptr) return;
  ring->input.fetch_add(nanoseconds(Clock::now()) - nanoseconds(began_), std::memory_order_relaxed);
}

std::string dump_folder(std::string_view folder, std::string_view run_id, int attempt) {
  return fmt::format("{}/{}/attempt_{}", folder, file_name(run_id), attempt);
}

std::string dump_path(const std::string& folder, int rank) {
  return fmt::format("{}/rank_{}.flight", folder, rank);
}

void dump_once() {
  const Environment environment = Environment::of_process();
  const auto folder = environment.get("LOCKSTEP_DUMP_DIR");
  if (!folder || own().ring() == nullptr || own().dumped.exchange(true)) return;
  const std::shared_ptr<Ring> copy = std::make_unique<Ring>();
  load_words(copy.get(), own().ring(), sizeof(Ring));
  copy->dumped = nanoseconds(Clock::now());
  set_text(copy->process, "met an error");
  const std::string job = environment.get("TORCHELASTIC_RUN_ID").value_or("job");
  const std::string to = dump_path(dump_folder(*folder, job, copy->attempt), copy->rank);
  const Status written = write_in_time(to, copy);
  if (written.ok()) {
    log::info(fmt::format("what this rank called last is in '{}'", to));
  } else {
    log::warning(written.message());
  }
}

const Ring* ring_of_process() {
  return own().ring();
}

bool make_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct statfs system {};
  if (!file.valid()) return false;
  // The system writes memory of a file on a disk back now and then, and a rank that writes there would wait for it.
  if (fstatfs(file.get(), &system) == 0 && system.f_type == TMPFS_MAGIC) return true;
  unlink(path.c_str());
  return false;
}

Status copy_to_dump(const std::string& from, const std::string& to, std::string_view process) {
  const Fd file(open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return Status::from_errno(fmt::format("cannot read the recorder '{}'", from), errno);
  const auto copy = std::make_unique<Ring>();
  if (pread(file.get(), copy.get(), sizeof(Ring), 0) != static_cast<ssize_t>(sizeof(Ring))) return {};
  if (copy->magic.load() != kMagic) return {};
  copy->dumped = nanoseconds(Clock::now());
  set_text(copy->process, process);
  return write_file(to, *copy);
}

}  // namespace lockstep::flight
