#include "store/membership/meeting_place.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "attendance.h"
#include "base/fnv1a.h"
#include "base/host.h"
#include "base/random.h"
#include "lockstep/store/hash_store.h"
#include "store/membership/same_choice.h"
#include "store/membership/watched_store.h"
#include "store/tcp/socket.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kIdBytes = 8;
constexpr std::size_t kListed = 8;                      // members in an error
constexpr auto kRefusalTime = std::chrono::seconds(1);  // for telling others
constexpr auto kQuestionTime = std::chrono::seconds(1);
constexpr auto kAttemptTime = std::chrono::seconds(1);

Status invalid(std::string text) {
  return {ErrorCode::kInvalidArgument, std::move(text)};
}

// Tells keys apart without telling them.
std::string word_for(const std::string& job_key) {
  if (job_key.empty()) return "-";
  constexpr std::string_view kText = "lockstep reconfigure handle";
  unsigned char digest[EVP_MAX_MD_SIZE];  // NOLINT(modernize-avoid-c-arrays): OpenSSL's
  unsigned int bytes = 0;
  ::HMAC(::EVP_sha256(), job_key.data(), static_cast<int>(job_key.size()),
         reinterpret_cast<const unsigned char*>(kText.data()), kText.size(), digest, &bytes);
  std::string word;
  for (std::size_t i = 0; i < kIdBytes; ++i) word += fmt::format("{:02x}", digest[i]);
  return word;
}

std::string keys_of(const ReconfigureCall& call) {
  return fmt::format("reconfigure/{}/{}", call.group, call.uuid);
}

std::string digest_of(const std::vector<ReconfigureHandle>& members) {
  Fnv1a hash;
  for (const ReconfigureHandle& member : members) hash.add_bytes(member.id);
  return fmt::format("{} members with digest {:016x}", members.size(), hash.value());
}

// At whose store the members meet. It does not depend on the order of the handles, so that members that disagree about
// that meet too, and learn of it.
const ReconfigureHandle& host_of(const std::vector<ReconfigureHandle>& members) {
  return *std::min_element(members.begin(), members.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.id) < std::tie(b.rank, b.id);
  });
}

// Errors name ranks: who they are.
std::string list_of(const std::vector<ReconfigureHandle>& members) {
  std::string text;
  for (std::size_t rank = 0; rank < std::min(members.size(), kListed); ++rank)
    text += fmt::format("{}rank {} is {}", rank == 0 ? "" : ", ", rank, describe(members[rank]));
  return members.size() > kListed ? text + ", ..." : text;
}

// A process keeps its store until it ends or leaves the group.
bool has_ended(const ReconfigureHandle& member, Deadline deadline) {
  return ask_port(member.store, earlier(deadline, Deadline::after(kQuestionTime))) == PortAnswer::kRefused;
}

Status ended(const ReconfigureHandle& member) {
  return {ErrorCode::kPeerFailed,
          fmt::format("{} has ended or left: nobody listens at {}", describe(member), member.store.text())};
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
  return std::shared_ptr<MeetingPlace>(new MeetingPlace(std::move(server), std::move(own), options.job_key));
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

// Tells the members that wait for this one.
Status MeetingPlace::refuse(const ReconfigureCall& call, const Handles& members, const Status& why) const {
  if (members.size() == 1) return why;
  const auto store =
      TcpStore::connect({.server = host_of(members).store, .job_key = job_key_}, Deadline::after(kRefusalTime));
  if (store.ok()) {
    const Status told(why.code(),
                      why.code() == ErrorCode::kPeerFailed
                          ? why.message()
                          : fmt::format("rank(s) {} could not take part: {}", rank_in(members), why.message()));
    refuse_choice(*store.value(), keys_of(call), static_cast<int>(members.size()), told);
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
  const TcpStoreOptions server{.server = host.store, .job_key = job_key_};
  Result<std::shared_ptr<Attendance>> attendance = ended(host);
  while (!has_ended(host, deadline)) {
    // It may end at any time, so a connection is not tried for long.
    attendance = Attendance::open(server, own_.id, earlier(deadline, Deadline::after(kAttemptTime)));
    if (attendance.status().code() != ErrorCode::kUnavailable || deadline.expired()) break;
    attendance = ended(host);
  }
  if (!attendance.ok()) return attendance.status().with_context(fmt::format("the store of {}", describe(host)));
  MutexLock lock(mutex_);
  attendance_ = attendance.value();
  return attendance;
}

void MeetingPlace::end_attendance() {
  MutexLock lock(mutex_);
  attendance_.reset();
}

Result<Reunion> MeetingPlace::meet(const ReconfigureCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Handles members, members_of(call));
  if (const Status unused = check_unused(call); !unused.ok()) return refuse(call, members, unused);
  auto met = meet(call, members);
  if (met.ok()) return met;
  end_attendance();
  const Status& why = met.status();
  const ReconfigureHandle& host = host_of(members);
  if (why.code() == ErrorCode::kUnavailable && has_ended(host, call.deadline)) return ended(host);
  return Status(why.code(), fmt::format("{}. Here {}", why.message(), list_of(members)));
}

Result<Reunion> MeetingPlace::meet(const ReconfigureCall& call, const Handles& members) {
  RendezvousOptions options;
  options.rank = rank_in(members);
  options.world_size = static_cast<int>(members.size());
  options.group_name = keys_of(call);
  options.environment = Environment();  // a newcomer's may differ
  Reunion reunion;
  for (const ReconfigureHandle& member : members) reunion.handles.push_back(to_text(member));
  {
    MutexLock lock(mutex_);
    used_.emplace(call.group, call.uuid);
  }
  std::shared_ptr<Store> store = std::make_shared<HashStore>();
  if (members.size() > 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(reunion.attendance, attend(host_of(members), call.deadline));
    if (host_of(members).id == own_.id) {  // for all of them
      const auto lost = std::find_if(members.begin(), members.end(),
                                     [&](const auto& member) { return has_ended(member, call.deadline); });
      if (lost != members.end()) return refuse(call, members, ended(*lost));
    }
    end_attendance();  // `reunion` owns it now
    LOCKSTEP_RETURN_IF_ERROR(reunion.attendance->come(keys_of(call)));
    store = make_watched_store(reunion.attendance->store(),
                               [members, attendance = reunion.attendance] { return attendance->check(members); });
    LOCKSTEP_RETURN_IF_ERROR(check_same_choice(*store, keys_of(call), Roster(), options.rank, options.world_size,
                                               {digest_of(members), /*is_default=*/false, "handles"}, call.deadline));
  }
  options.timeout = call.deadline.remaining_ms();
  LOCKSTEP_ASSIGN_OR_RETURN(reunion.rendezvous, rendezvous(options, store));
  return reunion;
}

}  // namespace lockstep::comm
