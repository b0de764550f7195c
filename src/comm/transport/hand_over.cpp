#include "hand_over.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "lockstep/base/mutex.h"
#include "map_shared.h"
#include "unix_socket.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kMagic = 0x4c4b5354'41524e41;  // "LKSTARNA"
using Token = std::array<std::byte, 16>;
constexpr auto kLookEvery = std::chrono::milliseconds(200);
constexpr auto kAnswerGrace = std::chrono::seconds(1);
constexpr std::size_t kMaxSilent = 64;

// What a rank says of itself; its arena and its pidfd travel with it.
struct Introduction {
  std::uint64_t magic = kMagic;
  Token token{};
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int64_t pid = 0;
  std::uint64_t reserve = 0;
};

// Rank 0's first answer: the group is complete, or why there will be none.
struct Verdict {
  std::uint64_t magic = kMagic;
  std::int32_t code = 0;
  std::array<char, 500> text{};
};

// Where rank 0 can be reached, as published in the store.
struct Address {
  std::array<char, 64> machine{};
  std::array<char, 64> host{};
  std::array<char, 48> socket{};
  Token token{};
};

Status fill_random(std::span<std::byte> bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return Status::from_errno("getrandom", errno);
  return {};
}

template <std::size_t N>
void copy_text(std::array<char, N>& to, const std::string& from) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), N - 1));
}

std::string machine_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string host_name() {
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

constexpr const char* kAddress = "address";

std::string key_of(const std::string& group, const char* what) {
  return fmt::format("lockstep/{}/{}", group, what);
}

Fd open_own_process() {
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
}

// What this process has of another one's memory.
struct Known {
  std::weak_ptr<Mapping> mapping;
  std::weak_ptr<Fd> process;  // whose memory it is
};

// The same memory reaches this process once per group, or per rank that is a thread: map it once, and keep one pidfd of
// its owner. Keyed by the memfd's inode, which names it machine-wide.
Result<Peer> share(int fd, std::size_t bytes, Fd process) {
  static Mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, Known>& all = *new std::map<std::pair<dev_t, ino_t>, Known>;
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status::from_errno("fstat of a rank's shared memory", errno);
  if (static_cast<std::uint64_t>(info.st_size) < bytes) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("a rank's shared memory has {} bytes, it announced {}", info.st_size, bytes));
  }
  MutexLock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.mapping.expired(); });
  Known& known = all[{info.st_dev, info.st_ino}];
  Peer peer;
  peer.arena = known.mapping.lock();
  if (!peer.arena || peer.arena->bytes() != bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(peer.arena, Mapping::map(fd, bytes));
    known.mapping = peer.arena;
  }
  peer.process = known.process.lock();
  if (!peer.process || !peer.process->valid()) {
    peer.process = std::make_shared<Fd>(std::move(process));
    known.process = peer.process;
  }
  return peer;
}

Result<Peer> make_peer(const Introduction& introduction, int arena_fd, Fd process) {
  LOCKSTEP_ASSIGN_OR_RETURN(Peer peer, share(arena_fd, introduction.reserve, std::move(process)));
  peer.pid = static_cast<int>(introduction.pid);
  return peer;
}

Result<Fd> make_control(std::size_t bytes) {
  Fd fd(memfd_create("lockstep-control", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Status::from_errno(fmt::format("cannot create {} bytes of control memory", bytes), errno);
  }
  return fd;
}

class Exchange {
 public:
  Exchange(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline)
      : store_(store), arena_(arena), options_(options), deadline_(deadline) {
    self_.rank = options.rank;
    self_.world_size = options.world_size;
    self_.pid = getpid();
    self_.reserve = arena.reserve();
  }

  Result<HandOver> run() { return options_.rank == 0 ? collect() : join(); }

 private:
  std::string key(const char* what) const { return key_of(options_.name, what); }

  // Rank 0: gathers everyone's descriptors, hands all of them to all.
  Result<HandOver> collect() {
    LOCKSTEP_ASSIGN_OR_RETURN(Fd control, make_control(options_.control_bytes));
    introductions_.resize(options_.world_size);
    descriptors_.resize(options_.world_size);
    introductions_[0] = self_;
    descriptors_[0].emplace_back(fcntl(arena_.fd(), F_DUPFD_CLOEXEC, 0));
    descriptors_[0].push_back(open_own_process());
    std::vector<Fd> sockets(options_.world_size);
    if (options_.world_size > 1) {
      if (Status failed = accept_all(sockets); !failed.ok()) {
        decline(sockets, failed);
        return failed;
      }
      for (int rank = 1; rank < options_.world_size; ++rank) {
        LOCKSTEP_RETURN_IF_ERROR(answer(sockets[rank].get(), control.get()).with_context(fmt::format("rank {}", rank)));
      }
    }
    return build(control.get());
  }

  // Tells those who have come, and by the store those who come later, why there will be no group. Best effort.
  void decline(const std::vector<Fd>& sockets, const Status& why) {
    (void)store_.set(key("refused"), why.message());
    Verdict verdict;
    verdict.code = static_cast<std::int32_t>(why.code());
    copy_text(verdict.text, why.message());
    const Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
    const std::vector<Fd>& refused = refused_;
    for (const auto* list : {&sockets, &refused}) {
      for (const Fd& socket : *list) {
        if (socket.valid()) (void)send_message(socket.get(), std::as_bytes(std::span(&verdict, 1)), {}, at_once);
      }
    }
  }

  Status accept_all(std::vector<Fd>& sockets) {
    Address address;
    LOCKSTEP_RETURN_IF_ERROR(fill_random(address.token));
    std::array<std::byte, 16> random;
    LOCKSTEP_RETURN_IF_ERROR(fill_random(random));
    std::string name = "lockstep-";
    for (std::byte byte : random) name += fmt::format("{:02x}", std::to_integer<int>(byte));
    copy_text(address.machine, machine_id());
    copy_text(address.host, host_name());
    copy_text(address.socket, name);
    LOCKSTEP_ASSIGN_OR_RETURN(const Fd listener, listen_unix(name, options_.world_size + 8));
    LOCKSTEP_RETURN_IF_ERROR(store_.set(key(kAddress), {reinterpret_cast<const char*>(&address), sizeof(address)}));
    std::vector<Fd> strangers;  // connected, and have said nothing yet
    for (int joined = 1; joined < options_.world_size;) {
      const auto at_most = std::min<std::chrono::nanoseconds>(kLookEvery, deadline_.remaining());
      LOCKSTEP_ASSIGN_OR_RETURN(const bool somebody, wait_readable(strangers, listener.get(), at_most));
      if (!somebody || deadline_.expired()) LOCKSTEP_RETURN_IF_ERROR(check_waiting(sockets));
      LOCKSTEP_RETURN_IF_ERROR(accept_strangers(listener.get(), strangers));
      for (Fd& stranger : strangers) {
        LOCKSTEP_ASSIGN_OR_RETURN(const bool is_rank, introduce(stranger, address.token, sockets));
        if (is_rank) ++joined;
      }
      std::erase_if(strangers, [](const Fd& stranger) { return !stranger.valid(); });
    }
    return {};
  }

  Status accept_strangers(int listener, std::vector<Fd>& strangers) const {
    for (;;) {
      LOCKSTEP_ASSIGN_OR_RETURN(Fd socket, accept_unix(listener));
      if (!socket.valid()) return {};
      if (!same_user(socket.get())) continue;
      // Ranks speak at once: who is still silent when so many others have come is none.
      if (strangers.size() >= static_cast<std::size_t>(options_.world_size) + kMaxSilent)
        strangers.erase(strangers.begin());
      strangers.push_back(std::move(socket));
    }
  }

  // Reads what a stranger says, if anything: true when it was a rank. Whoever is none of us is let go.
  Result<bool> introduce(Fd& stranger, const Token& token, std::vector<Fd>& sockets) {
    Introduction introduction;
    std::vector<Fd> descriptors;
    const Status read = receive_message(stranger.get(), std::as_writable_bytes(std::span(&introduction, 1)),
                                        descriptors, Deadline::after(std::chrono::nanoseconds(0)));
    if (read.code() == ErrorCode::kTimeout) return false;
    Fd member = std::exchange(stranger, Fd());
    if (!read.ok() || introduction.magic != kMagic || introduction.token != token) return false;
    if (Status checked = check(introduction, descriptors.size(), sockets); !checked.ok()) {
      refused_.push_back(std::move(member));
      return checked;
    }
    sockets[introduction.rank] = std::move(member);
    descriptors_[introduction.rank] = std::move(descriptors);
    introductions_[introduction.rank] = introduction;
    return true;
  }

  // Whether a rank has said that it cannot come, or the time is over.
  Status check_waiting(const std::vector<Fd>& sockets) {
    const std::array<std::string, 1> refused{key("refused")};
    if (auto there = store_.check(refused); there.ok() && there.value()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const Bytes why, store_.get(refused[0], deadline_));
      return {ErrorCode::kUnsupported, why};
    }
    if (!deadline_.expired()) return {};
    std::string missing;
    for (int rank = 1; rank < options_.world_size; ++rank) {
      if (!sockets[rank].valid()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
    return {ErrorCode::kTimeout, fmt::format("group '{}': rank(s) {} did not join", options_.name, missing)};
  }

  Status check(const Introduction& introduction, std::size_t descriptors, const std::vector<Fd>& sockets) const {
    const int rank = introduction.rank;
    if (introduction.world_size != options_.world_size || rank <= 0 || rank >= options_.world_size) {
      return {ErrorCode::kMismatch,
              fmt::format("group '{}': pid {} joined as rank {} of {}, rank 0 expects a world of {}", options_.name,
                          introduction.pid, rank, introduction.world_size, options_.world_size)};
    }
    if (sockets[rank].valid()) {
      return {ErrorCode::kMismatch, fmt::format("group '{}': rank {} joined twice, as pid {} and as pid {}",
                                                options_.name, rank, introductions_[rank].pid, introduction.pid)};
    }
    if (descriptors != 2)
      return {ErrorCode::kCorrupt, fmt::format("rank {} handed over {} descriptors, expected 2", rank, descriptors)};
    return {};
  }

  Status answer(int socket, int control) {
    const std::array<int, 1> first{control};
    const Verdict verdict;
    LOCKSTEP_RETURN_IF_ERROR(send_message(socket, std::as_bytes(std::span(&verdict, 1)), first, deadline_));
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const std::array<int, 2> pair{descriptors_[rank][0].get(), descriptors_[rank][1].get()};
      const std::size_t count = descriptors_[rank][1].valid() ? 2 : 1;
      LOCKSTEP_RETURN_IF_ERROR(send_message(socket, std::as_bytes(std::span(&introductions_[rank], 1)),
                                            std::span(pair).first(count), deadline_));
    }
    return {};
  }

  Result<HandOver> join() {
    auto announced = store_.get(key(kAddress), deadline_);
    if (!announced.ok()) return announced.status().with_context("waiting for rank 0");
    const Bytes published = std::move(announced).value();
    Address address;
    if (published.size() != sizeof(address)) {
      return Status(ErrorCode::kCorrupt, fmt::format("group '{}': what rank 0 published is no address", options_.name));
    }
    std::memcpy(&address, published.data(), sizeof(address));
    if (machine_id() != address.machine.data()) {
      const std::string why = fmt::format(
          "group '{}': rank {} runs on host {}, rank 0 on host {}; ranks that are to share memory (those with the same "
          "LOCKSTEP_MACHINE) must be on one machine",
          options_.name, options_.rank, host_name(), address.host.data());
      LOCKSTEP_RETURN_IF_ERROR(store_.set(key("refused"), why));
      return Status(ErrorCode::kUnsupported, why);
    }
    auto connected = connect_unix(address.socket.data(), deadline_);
    if (!connected.ok()) return why_no_connection(connected.status());
    const Fd socket = std::move(connected).value();
    self_.token = address.token;
    const Fd process = open_own_process();
    const std::array<int, 2> own{arena_.fd(), process.get()};
    if (!process.valid()) return Status::from_errno("pidfd_open (Linux 5.3 or newer is needed)", errno);
    LOCKSTEP_RETURN_IF_ERROR(send_message(socket.get(), std::as_bytes(std::span(&self_, 1)), own, deadline_));

    Verdict verdict;
    std::vector<Fd> control;
    // A little longer than rank 0 waits: it knows who is missing.
    const Deadline answer_by = Deadline::after(deadline_.remaining() + kAnswerGrace);
    LOCKSTEP_RETURN_IF_ERROR(
        receive_message(socket.get(), std::as_writable_bytes(std::span(&verdict, 1)), control, answer_by));
    if (verdict.code != 0) return Status(static_cast<ErrorCode>(verdict.code), verdict.text.data());
    if (control.size() != 1) return Status(ErrorCode::kCorrupt, "rank 0 sent no control memory");
    introductions_.resize(options_.world_size);
    descriptors_.resize(options_.world_size);
    for (int rank = 0; rank < options_.world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(receive_message(
          socket.get(), std::as_writable_bytes(std::span(&introductions_[rank], 1)), descriptors_[rank], deadline_));
      if (descriptors_[rank].empty())
        return Status(ErrorCode::kCorrupt, fmt::format("no memory of rank {} arrived", rank));
    }
    return build(control[0].get());
  }

  // Rank 0 may have given up before this rank came.
  Status why_no_connection(const Status& failure) {
    const std::array<std::string, 1> refused{key("refused")};
    if (auto there = store_.check(refused); there.ok() && there.value()) {
      if (auto why = store_.get(refused[0], deadline_); why.ok()) return {failure.code(), why.value()};
    }
    return failure;
  }

  Result<HandOver> build(int control) {
    HandOver result;
    LOCKSTEP_ASSIGN_OR_RETURN(const Peer shared, share(control, options_.control_bytes, Fd()));
    result.control = shared.arena;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      Fd process = descriptors_[rank].size() > 1 ? std::move(descriptors_[rank][1]) : Fd();
      LOCKSTEP_ASSIGN_OR_RETURN(Peer peer,
                                make_peer(introductions_[rank], descriptors_[rank][0].get(), std::move(process)));
      result.peers.push_back(std::move(peer));
    }
    return result;
  }

  Store& store_;
  const SharedArena& arena_;
  const HandOverOptions& options_;
  Deadline deadline_;
  Introduction self_;
  std::vector<Introduction> introductions_;
  std::vector<std::vector<Fd>> descriptors_;  // arena, pidfd; by rank
  std::vector<Fd> refused_;                   // who came as a rank but cannot be one
};

}  // namespace

Result<std::shared_ptr<Mapping>> Mapping::map(int fd, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const base, map_shared(fd, bytes));
  return std::shared_ptr<Mapping>(new Mapping(base, bytes));
}

Mapping::~Mapping() {
  munmap(base_, bytes_);
}

std::string hand_over_key(const std::string& group) {
  return key_of(group, kAddress);
}

Result<HandOver> hand_over(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline) {
  return Exchange(store, arena, options, deadline).run();
}

}  // namespace lockstep::comm
