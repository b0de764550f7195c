#include "gathering.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "base/fnv1a.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/watched_store.h"
#include "store/tcp/socket.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

// How often the host looks at the ports of those who have not come, and into their stores.
constexpr auto kAskEvery = milliseconds(10);
constexpr auto kNotesEvery = milliseconds(200);
constexpr auto kNoteTime = milliseconds(20);  // a process that is stopped does not answer
constexpr auto kQuestionTime = std::chrono::seconds(1);
constexpr auto kValueTime = std::chrono::seconds(5);  // the value is in the store
constexpr auto kClosingTime = milliseconds(200);

// What a process gives, in short.
struct Given {
  std::size_t count = 0;
  std::uint64_t set = 0;    // of ids, whatever their order
  std::uint64_t order = 0;  // of ids in their order

  bool operator==(const Given& other) const {
    return std::tie(count, set, order) == std::tie(other.count, other.set, other.order);
  }
};

Given given_by(const std::vector<ReconfigureHandle>& members) {
  Given given{members.size()};
  Fnv1a order;
  for (const ReconfigureHandle& member : members) {
    order.add_bytes(member.id);
    given.set ^= fnv1a(member.id);
  }
  given.order = order.value();
  return given;
}

std::string to_text(const Given& given) {
  return fmt::format("{} {} {}", given.count, given.set, given.order);
}

Status corrupt(const std::string& found) {
  return {ErrorCode::kCorrupt, fmt::format("expected what a member of a reconfiguration gives, found '{}'", found)};
}

Status different(const std::string& one, const Given& ones, const std::string& other, const Given& others,
                 std::int64_t uuid) {
  std::string how = fmt::format("{} members and {} members", ones.count, others.count);
  if (ones.count == others.count) {
    how = ones.set == others.set ? fmt::format("the same {} members in another order", ones.count)
                                 : fmt::format("{} members each, which are not the same", ones.count);
  }
  return {ErrorCode::kMismatch,
          fmt::format("{} and {} give different handles with uuid {}: {}. All members need the same handles in the "
                      "same order, and each reconfiguration a number of its own",
                      one, other, uuid, how)};
}

// A line of the meeting: a member that has come.
struct Comer {
  Given given;
  ReconfigureHandle handle;
};

Result<std::vector<Comer>> parse_comers(const std::string& lines) {
  std::vector<Comer> comers;
  std::istringstream input(lines);
  for (std::string line; std::getline(input, line);) {
    Comer comer;
    std::string text;
    std::istringstream words(line);
    if (!(words >> comer.given.count >> comer.given.set >> comer.given.order) ||
        !std::getline(words >> std::ws, text)) {
      return corrupt(line);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(comer.handle, parse_reconfigure_handle(text));
    comers.push_back(std::move(comer));
  }
  return comers;
}

bool has_come(const std::vector<Comer>& comers, const ReconfigureHandle& member) {
  return std::any_of(comers.begin(), comers.end(), [&](const Comer& one) { return one.handle.id == member.id; });
}

// The length keeps one group's keys from beginning with another's.
std::string keys_for(const std::string& group, std::int64_t uuid) {
  return fmt::format("reconfigure/{}/{}/{}", uuid, group.size(), group);
}

std::string note_key(const std::string& group) {
  return "gives/" + group;
}

std::size_t host_among(const std::vector<ReconfigureHandle>& members) {
  const auto host = std::min_element(members.begin(), members.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.id) < std::tie(b.rank, b.id);
  });
  return static_cast<std::size_t>(host - members.begin());
}

}  // namespace

Status ended(const ReconfigureHandle& member) {
  return {ErrorCode::kPeerFailed,
          fmt::format("{} has ended or left: nobody listens at {}", describe(member), member.store.text())};
}

Status ended_or(const ReconfigureHandle& member, const Status& lost) {
  const Deadline deadline = Deadline::after(kClosingTime);
  do {
    if (ask_port(member.store, deadline) == PortAnswer::kRefused) return ended(member);
    std::this_thread::sleep_for(milliseconds(1));
  } while (!deadline.expired());
  return lost;
}

Gathering::Gathering(const std::string& group, std::int64_t uuid, std::vector<ReconfigureHandle> members,
                     std::size_t own, std::string job_key, Deadline deadline)
    : group_(group),
      uuid_(uuid),
      members_(std::move(members)),
      own_(own),
      host_(host_among(members_)),
      job_key_(std::move(job_key)),
      deadline_(deadline),
      keys_(keys_for(group, uuid)),
      unreachable_(members_.size()),
      next_notes_(Deadline::after(kNotesEvery)) {}

Status Gathering::note_in(Store& own_store) const {
  return own_store.set(note_key(group_), fmt::format("{} {}", uuid_, to_text(given_by(members_))));
}

Meeting Gathering::meeting() const {
  Meeting meeting{keys_ + "/so_far", outcome_key(keys_), static_cast<int>(members_.size())};
  meeting.check = [uuid = uuid_](const std::string& lines) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Comer> comers, parse_comers(lines));
    const Comer& first = comers.front();
    for (const Comer& other : comers) {
      if (other.given == first.given) continue;
      return different(describe(first.handle), first.given, describe(other.handle), other.given, uuid);
    }
    return {};
  };
  meeting.missing = [this](const std::string& lines, std::chrono::duration<double> spent) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Comer> comers, parse_comers(lines));
    std::vector<std::size_t> living, lost;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (!has_come(comers, members_[rank])) (unreachable_[rank] ? lost : living).push_back(rank);
    }
    std::string text = fmt::format("only {} of {} ranks came within {:.1f} s; missing: ", comers.size(),
                                   members_.size(), spent.count());
    if (!living.empty()) {
      text += fmt::format("rank(s) {}, which live(s) and did not call reconfigure with these handles and this uuid",
                          fmt::join(living, ", "));
    }
    if (!lost.empty()) {
      text += fmt::format("{}rank(s) {}, which cannot be reached", living.empty() ? "" : "; ", fmt::join(lost, ", "));
    }
    return {ErrorCode::kTimeout, text};
  };
  return meeting;
}

void Gathering::refuse(Store& host_store, const Status& why) const {
  stay_away(host_store, meeting(), why);
}

Status Gathering::gather(const std::shared_ptr<Attendance>& attendance) {
  const milliseconds every = own_ == host_ ? kAskEvery : kNotesEvery;
  const auto store = make_watched_store(attendance->store(), [this, &attendance] { return look(*attendance); },
                                        {.every = every,
                                         .alarm = [&attendance] { return attendance->next_end(); },
                                         .lost = [this](const Status& why) { return ended_or(host(), why); }});
  const std::string line = fmt::format("{} {}\n", to_text(given_by(members_)), to_text(members_[own_]));
  return meet(*store, meeting(), line, deadline_).status();
}

std::shared_ptr<Store> Gathering::watched(const std::shared_ptr<Attendance>& attendance) const {
  return make_watched_store(attendance->store(),
                            [attendance, members = members_] { return attendance->check(members); },
                            {.alarm = [attendance] { return attendance->next_end(); },
                             .lost = [host = host()](const Status& why) { return ended_or(host, why); }});
}

Status Gathering::look(const Attendance& attendance) {
  LOCKSTEP_RETURN_IF_ERROR(attendance.check(members_));
  return own_ == host_ ? look_for_missing(*attendance.store()) : compare(*attendance.store(), host());
}

// Only the host does it, as all others would learn the same.
Status Gathering::look_for_missing(Store& store) {
  if (!next_questions_.expired()) return {};
  next_questions_ = Deadline::after(pause_of_questions(start_, kAskEvery));
  const auto so_far = store.get(meeting().so_far_key, Deadline::after(kValueTime));
  if (so_far.status().code() == ErrorCode::kTimeout) return {};
  LOCKSTEP_RETURN_IF_ERROR(so_far.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Comer> comers, parse_comers(so_far.value()));
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (unreachable_[i] || has_come(comers, members_[i])) continue;
    const PortAnswer answer = ask_port(members_[i].store, earlier(deadline_, Deadline::after(kQuestionTime)));
    if (answer == PortAnswer::kRefused) return ended(members_[i]);
    unreachable_[i] = answer == PortAnswer::kNone;
    missing.push_back(i);
  }
  if (missing.empty() || !next_notes_.expired()) return {};
  next_notes_ = Deadline::after(pause_of_questions(start_, kNotesEvery));
  for (std::size_t turn = 0; turn < missing.size(); ++turn) {
    const ReconfigureHandle& member = members_[missing[(first_note_ + turn) % missing.size()]];
    const auto theirs = TcpStore::connect({.server = member.store, .job_key = job_key_, .tries_again = false},
                                          Deadline::after(kNoteTime));
    if (theirs.ok()) LOCKSTEP_RETURN_IF_ERROR(compare(*theirs.value(), member));
    if (theirs.status().code() != ErrorCode::kTimeout) continue;
    first_note_ += turn + 1;
    break;
  }
  return {};
}

// Whether `who`, whose own store this is, has given something else with this number.
Status Gathering::compare(Store& store, const ReconfigureHandle& who) const {
  const auto note = store.get(note_key(group_), Deadline::after(milliseconds(0)));
  if (!note.ok()) return {};
  std::int64_t uuid = 0;
  Given theirs;
  if (!(std::istringstream(note.value()) >> uuid >> theirs.count >> theirs.set >> theirs.order))
    return corrupt(note.value());
  const Given mine = given_by(members_);
  if (uuid != uuid_ || theirs == mine) return {};
  return different(describe(who), theirs, describe(members_[own_]), mine, uuid_);
}

}  // namespace lockstep::comm
