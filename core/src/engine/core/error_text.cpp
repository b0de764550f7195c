#include "error_text.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <string_view>

#include "engine/core/failure.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kThen = ". After that ";
constexpr std::string_view kCut = "...";

std::string describe_one(const RequestTerms& terms, const Roster& ranks) {
  std::string name = to_string(terms.kind);
  const std::string op = terms.op == ReduceOp::kPremulSum ? fmt::format("{} by {}", to_string(terms.op), terms.factor)
                                                          : std::string(to_string(terms.op));
  const std::string_view type = to_string(terms.type);
  switch (terms.kind) {
    case Kind::kAllReduce: return fmt::format("{} of {} {} ({})", name, terms.count, type, op);
    case Kind::kReduce:
      return fmt::format("{} of {} {} ({}) to {}", name, terms.count, type, op, ranks.name(terms.root));
    case Kind::kBroadcast:
      return fmt::format("{} of {} bytes of {} from {}", name, terms.count, type, ranks.name(terms.root));
    case Kind::kReduceScatter: return fmt::format("{} of {} ({})", name, type, op);
    case Kind::kGather: return fmt::format("{} of {} to {}", name, type, ranks.name(terms.root));
    case Kind::kScatter: return fmt::format("{} of {} from {}", name, type, ranks.name(terms.root));
    case Kind::kAllGather:
    case Kind::kAllToAll: return fmt::format("{} of {}", name, type);
    default: return name;
  }
}

// The pid in this process's namespace; 0 if the process is gone or cannot be seen from here.
int pid_of(const Fd& process) {
  std::ifstream info(fmt::format("/proc/self/fdinfo/{}", process.get()));
  for (std::string word; info >> word;) {
    int pid = 0;
    if (word == "Pid:" && info >> pid) return pid < 0 ? 0 : pid;
  }
  return 0;
}

// The state letter in "pid (any name) state ...".
char state_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t bracket = text.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= text.size() ? '?' : text[bracket + 2];
}

}  // namespace

Status loss(const std::string& cause, const std::string& what) {
  return {is_formed_anew(cause) ? ErrorCode::kAborted : ErrorCode::kPeerFailed, caused(cause, what)};
}

std::string caused(const std::string& cause, const std::string& what) {
  std::string_view known = cause;
  if (known.ends_with(kCut)) known.remove_suffix(kCut.size());
  if (known.empty() || what.starts_with(known)) return what;
  if (is_formed_anew(known)) return cause;
  return cause + std::string(kThen) + what;
}

std::string first_cause(std::string_view message) {
  return std::string(message.substr(0, message.find(kThen)));
}

std::string shortened(std::string_view message, std::size_t bytes) {
  if (message.size() <= bytes) return std::string(message);
  std::size_t end = message.rfind(' ', bytes - kCut.size());
  if (end == std::string_view::npos) end = bytes - kCut.size();
  // Cuts before kThen, instead of inside it.
  for (std::size_t then = message.find(kThen); then < end; then = message.find(kThen, then + 1)) {
    if (end <= then + kThen.size()) end = then;
  }
  return std::string(message.substr(0, end)) + std::string(kCut);
}

std::string describe(const RequestTerms& terms, const Roster& ranks) {
  const std::string list = terms.list > 1 ? fmt::format(" in a list of {}", terms.list) : std::string();
  return describe_one(terms, ranks) + list;
}

std::string describe_refusal(const std::byte* reason, std::size_t bytes, const std::string& place) {
  const auto* const text = reinterpret_cast<const char*>(reason);
  const char* const cut = bytes == Refusal::kReasonBytes ? "..." : "";
  const std::string called = place.empty() ? "" : fmt::format(" (called{})", place);
  return fmt::format("could not take part: {}{}{}", std::string_view(text, bytes), cut, called);
}

std::string describe(Kind kind, std::uint64_t sequence, const std::string& group) {
  return fmt::format("{} #{} of group '{}'", to_string(kind), sequence, group);
}

std::string describe(const Transfer& transfer, const GroupNames& names) {
  return fmt::format("{} {} with tag {} in group '{}'", transfer.is_send ? "send to" : "recv from",
                     transfer.peer == kAnySource ? "any rank" : names.ranks.name(transfer.peer), transfer.tag,
                     names.group);
}

std::string describe_of(const Transfer& transfer, const GroupNames& names, int rank) {
  return fmt::format("{} of {}{}", describe(transfer, names), names.ranks.name(rank), describe_place(transfer.place));
}

std::string describe_late(const Transfer& transfer, const GroupNames& names, const HeldUpBy& peers) {
  return fmt::format("no matching {} came: {} did not call it{}", transfer.is_send ? "recv" : "send",
                     names.ranks.list(peers.absent), stand_still(peers.still, names.ranks));
}

std::string describe_timeout(const Transfer& transfer, const GroupNames& names, int rank, const HeldUpBy& peers) {
  return fmt::format("{} timed out: {}", describe_of(transfer, names, rank), describe_late(transfer, names, peers));
}

std::string describe(const AbsentRank& absent, const Roster& roster) {
  std::string text = absent.host.empty() ? absent.last_call : fmt::format("on {}, {}", absent.host, absent.last_call);
  if (absent.behind > 1) text += fmt::format(", {} calls behind", absent.behind);
  if (!absent.waits_for.empty()) {
    text += fmt::format(", now in {}", absent.waits_for);
  } else if (absent.idle.count() > 0) {
    text += fmt::format(", in no call for {} s", absent.idle.count());
  }
  if (!absent.condition.empty()) text += ", " + absent.condition;
  return fmt::format("{} ({})", roster.number(absent.rank), text);
}

std::vector<std::string> describe_absent(const std::vector<int>& ranks, const Roster& roster,
                                         const std::function<AbsentRank(int rank)>& known_of) {
  constexpr std::size_t kInFull = 4;
  std::vector<std::string> texts;
  for (const int rank : ranks) {
    texts.push_back(texts.size() < kInFull ? describe(known_of(rank), roster) : std::to_string(roster.number(rank)));
  }
  return texts;
}

std::string describe_callers(const std::map<int, std::string>& places, const Roster& roster) {
  std::map<std::string, std::vector<int>> ranks_at;
  for (const auto& [rank, place] : places) {
    if (!place.empty()) ranks_at[place].push_back(rank);
  }
  std::string text;
  for (const auto& [place, ranks] : ranks_at) {
    text += fmt::format("{} {}{}", text.empty() ? "; called by" : ", by", roster.list(ranks), place);
  }
  return text;
}

std::string describe(const HeldUpBy& ranks, const Roster& roster) {
  const std::string still = stand_still(ranks.still, roster);
  if (!ranks.absent.empty()) {
    return fmt::format("{} never called it{}{}", roster.list(ranks.absent), still, ranks.callers);
  }
  return fmt::format("every rank called it{}{}", still.empty() ? ", " + ranks.inside : still, ranks.callers);
}

std::string describe_timeout(const std::string& collective, const std::string& on, const HeldUpBy& ranks,
                             const Roster& roster) {
  return fmt::format("{} timed out on {}: {}; raise the timeout if they are only late", collective, on,
                     describe(ranks, roster));
}

std::string stand_still(const std::vector<std::string>& ranks, const Roster& roster) {
  return ranks.empty() ? std::string() : fmt::format("; {} stand still", roster.list(ranks));
}

Status disagreement(const GroupNames& names, std::uint64_t sequence, const std::vector<std::string>& calls) {
  std::map<std::string, std::vector<std::string>> ranks_by_call;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    ranks_by_call[calls[rank]].push_back(std::to_string(names.ranks.number(static_cast<int>(rank))));
  }
  std::string text;
  for (const auto& [call, ranks] : ranks_by_call) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", names.ranks.list(ranks), call);
  }
  return {ErrorCode::kMismatch,
          fmt::format("the ranks of group '{}' disagree in collective #{}: {}. Every rank must make the "
                      "same calls with the same sizes, in the same order",
                      names.group, sequence, text)};
}

Status disagreement(const GroupNames& names, std::uint64_t sequence, Kind kind, const SizeMismatch& sizes) {
  return {
      ErrorCode::kMismatch,
      fmt::format(
          "the ranks of group '{}' disagree in collective #{} ({}): {}{} expects {} bytes from {}, which sends {}{}",
          names.group, sequence, to_string(kind), names.ranks.name(sizes.to), sizes.to_place, sizes.wanted,
          names.ranks.name(sizes.from), sizes.sent, sizes.from_place)};
}

std::string condition_of(const Fd& process) {
  if (!process.valid()) return {};
  const int pid = pid_of(process);
  if (pid == 0) return {};
  switch (state_of(pid)) {
    case 'T': return "stopped by a signal";
    case 't': return "stopped by a debugger";
    case 'D': return "waiting for a device or file system";
    case 'Z':
    case 'X': return "dead";
    default: return {};
  }
}

}  // namespace lockstep::comm
