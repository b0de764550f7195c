#include "store/membership/join_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <vector>

#include "base/host.h"
#include "store/membership/delete_by_last_rank.h"
#include "store/membership/joined_twice.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kListed = 32;  // ranks spelled out in a message
constexpr auto kLeaveTime = std::chrono::seconds(1);

std::string joins_key(const std::string& base, int rank) {
  return fmt::format("{}/joins/{}", base, rank);
}
std::string rank_key(const std::string& prefix, int rank) {
  return fmt::format("{}/rank/{}", prefix, rank);
}
std::string left_key(const std::string& prefix, int rank) {
  return fmt::format("{}/left/{}", prefix, rank);
}

// "rank world pid host"; the host is last because it is free text.
std::string encode(const Participant& member) {
  return fmt::format("{} {} {} {}", member.rank, member.world_size, member.pid, member.host);
}

Result<Participant> decode_participant(std::string_view text) {
  Participant member;
  for (int* number : {&member.rank, &member.world_size, &member.pid}) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc() || end == text.data() + text.size()) {
      return Status(ErrorCode::kCorrupt, fmt::format("a member's record in the store is damaged: '{}'", text));
    }
    text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  }
  member.host = text;
  return member;
}

std::string describe(const Participant& member) {
  return fmt::format("rank {} (host {}, pid {})", member.rank, member.host, member.pid);
}

void list(std::string& text, std::size_t& count, const std::string& item) {
  if (count < kListed) text += (count == 0 ? "" : ", ") + item;
  ++count;
}

std::string cut_list(const std::string& text, std::size_t count) {
  if (count == 0) return "none";
  return count > kListed ? fmt::format("{} and {} more", text, count - kListed) : text;
}

class Round {
 public:
  Round(Store& store, const std::string& prefix, const Participant& me, Deadline deadline)
      : store_(store), prefix_(prefix), me_(me), deadline_(deadline), start_(Deadline::Clock::now()) {}

  Status run();
  // Publishes `outcome` unless one is published already; returns the published one.
  Status post(const Status& outcome);

 private:
  Status judge(const Participant& first);
  // Fills `outcome` with the timeout to post; returns an error when the store does not answer any more.
  Status missing_ranks(Status& outcome);

  Store& store_;
  const std::string& prefix_;
  const Participant& me_;
  const Deadline deadline_;
  const Deadline::Clock::time_point start_;
};

Status Round::post(const Status& outcome) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto verdict, store_.compare_set(prefix_ + "/verdict", "", to_text(outcome)));
  return status_from(verdict);
}

// What is wrong with this member, compared with the first that wrote its record.
Status Round::judge(const Participant& first) {
  if (first.world_size != me_.world_size) {
    return {ErrorCode::kMismatch,
            fmt::format("the ranks disagree about the world size: {} says {}, {} says {}. Start all with the same "
                        "WORLD_SIZE",
                        describe(first), first.world_size, describe(me_), me_.world_size)};
  }
  if (me_.rank >= me_.world_size) {
    return {ErrorCode::kMismatch, fmt::format("{} is outside the world of {}: ranks go from 0 to {}", describe(me_),
                                              me_.world_size, me_.world_size - 1)};
  }
  return {};
}

Status Round::run() {
  LOCKSTEP_RETURN_IF_ERROR(store_.set(rank_key(prefix_, me_.rank), encode(me_)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto first_text, store_.compare_set(prefix_ + "/world", "", encode(me_)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto first, decode_participant(first_text));
  if (const Status wrong = judge(first); !wrong.ok()) {
    LOCKSTEP_RETURN_IF_ERROR(post(wrong));
    return wrong;  // also when the others have formed their group already
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto count, store_.add(prefix_ + "/count", 1));
  if (count == me_.world_size) LOCKSTEP_RETURN_IF_ERROR(post(Status()));
  const auto verdict = store_.get(prefix_ + "/verdict", deadline_);
  if (verdict.ok()) return status_from(verdict.value());
  if (verdict.status().code() != ErrorCode::kTimeout) {
    return verdict.status().with_context("while waiting for the other ranks");
  }
  Status late;
  LOCKSTEP_RETURN_IF_ERROR(missing_ranks(late).with_context(verdict.status().message()));
  return post(late);
}

Status Round::missing_ranks(Status& outcome) {
  std::string joined;
  std::string missing;
  std::size_t num_joined = 0;
  std::size_t num_missing = 0;
  for (int rank = 0; rank < me_.world_size; ++rank) {
    const std::string key = rank_key(prefix_, rank);
    LOCKSTEP_ASSIGN_OR_RETURN(const bool there, store_.check({&key, 1}));
    if (!there) {
      list(missing, num_missing, std::to_string(rank));
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const auto text, store_.get(key, Deadline::after(std::chrono::seconds(5))));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto member, decode_participant(text));
    list(joined, num_joined, describe(member));
  }
  const std::chrono::duration<double> spent = Deadline::Clock::now() - start_;
  outcome =
      Status(ErrorCode::kTimeout,
             fmt::format("only {} of {} ranks joined within {:.1f} s. Joined: {}. Missing: {}. Look for what stopped "
                         "the missing ranks, or raise the timeout if they start late",
                         num_joined, me_.world_size, spent.count(), cut_list(joined, num_joined),
                         num_missing == 0 ? "none" : "rank " + cut_list(missing, num_missing)));
  return {};
}

// This process claims a rank that another process has. `prefix` is the other's round.
Status refuse_twin(Store& store, const std::string& base, const std::string& prefix, const Participant& me) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto undone, store.add(joins_key(base, me.rank), -1));
  static_cast<void>(undone);
  Claimant first;
  const auto text = store.get(rank_key(prefix, me.rank), Deadline::after(std::chrono::seconds(5)));
  if (text.ok()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto member, decode_participant(text.value()));
    first = {member.pid, member.host};
  }
  const Status twice = joined_twice(fmt::format("rank {}", me.rank), first, {me.pid, me.host});
  LOCKSTEP_RETURN_IF_ERROR(Round(store, prefix, me, Deadline::never()).post(twice));
  return twice;
}

}  // namespace

Participant make_participant(int rank, int world_size) {
  return {rank, world_size, host_name(), ::getpid()};
}

Result<std::string> join_group(Store& store, const std::string& base, const Participant& me, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto round, store.add(joins_key(base, me.rank), 1));
  if (round > 1) {
    const std::string before = fmt::format("{}/{}", base, round - 1);
    const std::string left = left_key(before, me.rank);
    LOCKSTEP_ASSIGN_OR_RETURN(const bool has_left, store.check({&left, 1}));
    if (!has_left) return refuse_twin(store, base, before, me);
  }
  const std::string prefix = fmt::format("{}/{}", base, round);
  const Status status = Round(store, prefix, me, deadline).run();
  if (status.ok()) return prefix;
  // Best effort: the store may be what failed.
  static_cast<void>(leave_group(store, prefix, me.rank, Deadline::after(kLeaveTime)));
  return status;
}

Status leave_group(Store& store, const std::string& prefix, int rank, Deadline deadline) {
  return store.set_by(left_key(prefix, rank), "1", deadline);
}

Result<bool> have_all_left(Store& store, const std::string& prefix, int world_size) {
  std::vector<std::string> keys;
  keys.reserve(world_size);
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(left_key(prefix, rank));
  return store.check(keys);
}

void forget_group(Store& store, const std::string& base, const std::string& prefix, int world_size) {
  std::vector<std::string> keys{prefix + "/world", prefix + "/count", prefix + "/verdict"};
  for (int rank = 0; rank < world_size; ++rank) {
    keys.push_back(joins_key(base, rank));
    keys.push_back(rank_key(prefix, rank));
  }
  delete_by_last_rank(store, prefix + "/done", world_size, keys);
}

Result<bool> has_joined(Store& store, const std::string& base, int rank) {
  const std::string key = joins_key(base, rank);
  return store.check({&key, 1});
}

}  // namespace lockstep::comm
