#include "store/membership/meeting_place.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <tuple>

#include "attendance.h"
#include "base/host.h"
#include "base/no_forks.h"
#include "base/random.h"
#include "gathering.h"
#include "lockstep/store/hash_store.h"
#include "store/tcp/socket.h"

namespace lockstep::comm {
namespace {

constexpr auto kRendezvousKeys = "lockstep/";  // before the keys of a group's rendezvous
constexpr std::size_t kIdBytes = 8;
constexpr std::size_t kListed = 8;                      // members in an error
constexpr auto kRefusalTime = std::chrono::seconds(1);  // for telling others
constexpr auto kOpenTime = std::chrono::seconds(10);
constexpr auto kQuestionTime = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(1);

Status invalid(std::string text) {
  return {ErrorCode::kInvalidArgument, std::move(text)};
}

// Tells keys apart without telling them.
std::string word_for(const std::string& job_key) {
  if (job_key.empty()) return "-";
  constexpr std::string_view kText = "lockstep reconfigure handle";
  unsigned char digest[EVP_MAX_MD_SIZE];  // NOLINT(modernize-avoid-c-arrays): OpenSSL's
  unsigned int bytes = 0;
  const NoForks during_call;
  ::HMAC(::EVP_sha256(), job_key.data(), static_cast<int>(job_key.size()),
         reinterpret_cast<const unsigned char*>(kText.data()), kText.size(), digest, &bytes);
  std::string word;
  for (std::size_t i = 0; i < kIdBytes; ++i) word += fmt::format("{:02x}", digest[i]);
  return word;
}

// Errors name ranks: who they are.
std::string list_of(const std::vector<ReconfigureHandle>& members) {
  std::string text;
  for (std::size_t rank = 0; rank < std::min(members.size(), kListed); ++rank)
    text += fmt::format("{}rank {} is {}", rank == 0 ? "" : ", ", rank, describe(members[rank]));
  return members.size() > kListed ? text + ", ..." : text;
}

}  // namespace

void Reunion::formed() const {
  if (attendance != nullptr) attendance->leave();
}

Result<std::shared_ptr<MeetingPlace>> MeetingPlace::open(const Options& options) {
  TcpStoreServerOptions served;
  served.listen_at = {options.address, 0};
  served.job_key = options.job_key;
  LOCKSTEP_ASSIGN_OR_RETURN(auto server, TcpStoreServer::start(std::move(served)));
  ReconfigureHandle own{options.build, word_for(options.job_key)};
  LOCKSTEP_ASSIGN_OR_RETURN(own.id, random_digits(kIdBytes));
  own.pid = static_cast<int>(getpid());
  own.host = host_name();
  own.store = server->endpoint();
  LOCKSTEP_ASSIGN_OR_RETURN(
      auto store, TcpStore::connect({.server = own.store, .job_key = options.job_key}, Deadline::after(kOpenTime)));
  return std::shared_ptr<MeetingPlace>(
      new MeetingPlace(std::move(server), std::move(store), std::move(own), options.job_key));
}

std::string MeetingPlace::handle(int rank) const {
  ReconfigureHandle handle = own_;
  handle.rank = rank;
  return to_text(handle);
}

int MeetingPlace::rank_in(const Handles& members) const {
  const auto own = std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.id == own_.id; });
  return own == members.end() ? -1 : static_cast<int>(own - members.begin());
}

Result<MeetingPlace::Handles> MeetingPlace::members_of(const ReconfigureCall& call) const {
  if (call.handles.empty())
    return invalid("no handles were given; expected one for each member, this process's own among them");
  Handles members;
  for (const std::string& text : call.handles) {
    LOCKSTEP_ASSIGN_OR_RETURN(ReconfigureHandle member, parse_reconfigure_handle(text));
    if (member.build != own_.build) {
      return invalid(fmt::format("the handle of {} is of {}, and this process is {}; all members need one build",
                                 describe(member), member.build, own_.build));
    }
    if (member.job != own_.job) {
      return invalid(
          fmt::format("the handle of {} is of another job: its job key is not this process's. Give "
                      "LOCKSTEP_JOB_KEY the same value in every process",
                      describe(member)));
    }
    members.push_back(std::move(member));
  }
  if (!call.ordered) {
    std::sort(members.begin(), members.end(),
              [](const auto& a, const auto& b) { return std::tie(a.rank, a.id) < std::tie(b.rank, b.id); });
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (members[i].id == members[j].id)
        return invalid(fmt::format("the handle of {} is there twice", describe(members[i])));
    }
  }
  if (rank_in(members) < 0) {
    return invalid(fmt::format("this process's own handle (pid {} on host {}) is not among the {} handles", own_.pid,
                               own_.host, members.size()));
  }
  return members;
}

Status MeetingPlace::check_unused(const ReconfigureCall& call) const {
  MutexLock lock(mutex_);
  if (!used_.contains({call.group, call.uuid})) return {};
  return {ErrorCode::kMismatch,
          fmt::format("uuid {} was already used in pid {} on host {}; each reconfiguration needs a "
                      "number of its own",
                      call.uuid, own_.pid, own_.host)};
}

Gathering MeetingPlace::gathering(const ReconfigureCall& call, const Handles& members) const {
  return {call.group, call.uuid, members, static_cast<std::size_t>(rank_in(members)), job_key_, call.deadline};
}

// Tells the members that wait for this one.
Status MeetingPlace::refuse(const ReconfigureCall& call, const Handles& members, const Status& why) const {
  if (members.size() == 1) return why;
  const Gathering others = gathering(call, members);
  const auto store = TcpStore::connect({.server = others.host().store, .job_key = job_key_, .tries_again = false},
                                       Deadline::after(kRefusalTime));
  if (store.ok()) {
    const std::string told = fmt::format("rank(s) {} could not take part: {}", rank_in(members), why.message());
    others.refuse(*store.value(), {why.code(), told});
  }
  return why;
}

Status MeetingPlace::check(const ReconfigureCall& call) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const Handles members, members_of(call));
  const Status unused = check_unused(call);
  return unused.ok() ? unused : refuse(call, members, unused);
}

Result<std::shared_ptr<Attendance>> MeetingPlace::attend(const ReconfigureHandle& host, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (attendance_ != nullptr && attendance_->server().text() == host.store.text()) return attendance_;
    attendance_.reset();
  }
  for (;; std::this_thread::sleep_for(kPause)) {
    auto attendance = Attendance::open({.server = host.store, .job_key = job_key_}, own_.id, deadline);
    if (attendance.ok()) {
      MutexLock lock(mutex_);
      attendance_ = attendance.value();
      return attendance;
    }
    const Status why = attendance.status().with_context(fmt::format("the store of {}", describe(host)));
    // Another program may listen there by now.
    if (why.code() == ErrorCode::kPermission || why.code() == ErrorCode::kCorrupt) {
      return Status(ErrorCode::kPeerFailed,
                    fmt::format("{} has ended or left: {}", describe(host), attendance.status().message()));
    }
    if (why.code() != ErrorCode::kUnavailable && why.code() != ErrorCode::kTimeout) return why;
    const PortAnswer answer = ask_port(host.store, Deadline::after(kQuestionTime));
    if (answer == PortAnswer::kRefused) return ended(host);
    if (answer == PortAnswer::kNone) return why;
    if (deadline.expired()) {
      return Status(ErrorCode::kTimeout,
                    fmt::format("{} lives, and its store at {} has not answered in time: is the process stopped?",
                                describe(host), host.store.text()));
    }
  }
}

void MeetingPlace::end_attendance() {
  MutexLock lock(mutex_);
  attendance_.reset();
}

// The keys of the group that this process has left. A refusal stays: a member that comes late would wait in vain.
Status MeetingPlace::forget_last(const std::string& group, const std::string& next_keys) {
  std::string keys = next_keys;
  {
    MutexLock lock(mutex_);
    std::swap(last_keys_[group], keys);
  }
  if (keys.empty()) return {};
  const std::string outcome_key = Gathering::outcome_key(keys);
  const auto outcome = store_->get(outcome_key, Deadline::after(std::chrono::milliseconds(0)));
  for (const char* const before : {"", kRendezvousKeys})
    LOCKSTEP_RETURN_IF_ERROR(store_->delete_prefix(before + keys + "/").status());
  if (!outcome.ok() || !is_refusal(outcome.value())) return {};
  return store_->set(outcome_key, outcome.value());
}

Result<Reunion> MeetingPlace::meet(const ReconfigureCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Handles members, members_of(call));
  if (const Status unused = check_unused(call); !unused.ok()) return refuse(call, members, unused);
  auto met = meet(call, members);
  if (met.ok()) return met;
  end_attendance();
  return Status(met.status().code(), fmt::format("{}. Here {}", met.status().message(), list_of(members)));
}

Result<Reunion> MeetingPlace::meet(const ReconfigureCall& call, const Handles& members) {
  Gathering here = gathering(call, members);
  {
    MutexLock lock(mutex_);
    used_.emplace(call.group, call.uuid);
  }
  LOCKSTEP_RETURN_IF_ERROR(forget_last(call.group, here.keys()));
  LOCKSTEP_RETURN_IF_ERROR(here.note_in(*store_));
  Reunion reunion;
  for (const ReconfigureHandle& member : members) reunion.handles.push_back(to_text(member));
  std::shared_ptr<Store> store = std::make_shared<HashStore>();
  if (members.size() > 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(reunion.attendance, attend(here.host(), call.deadline));
    end_attendance();  // `reunion` owns it now
    if (const Status come = reunion.attendance->come(here.keys()); !come.ok()) return ended_or(here.host(), come);
    LOCKSTEP_RETURN_IF_ERROR(here.gather(reunion.attendance));
    store = here.watched(reunion.attendance);
    reunion.store_rank = here.host_rank();
  }
  RendezvousOptions options;
  options.rank = rank_in(members);
  options.world_size = static_cast<int>(members.size());
  options.group_name = here.keys();
  options.environment = Environment();  // a newcomer's may differ
  options.timeout = call.deadline.remaining_ms();
  LOCKSTEP_ASSIGN_OR_RETURN(reunion.rendezvous, rendezvous(options, store));
  return reunion;
}

}  // namespace lockstep::comm
