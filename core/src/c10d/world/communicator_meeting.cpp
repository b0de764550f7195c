#include "c10d/world/communicator_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "base/host.h"
#include "lockstep/base/environment.h"
#include "lockstep/c10d/errors.h"
#include "store/membership/machine.h"
#include "store/membership/told_store.h"
#include "store/tcp/socket.h"

namespace lockstep {
namespace {

constexpr const char* kInit = "init_process_group";
// What each rank tells the others. 64 short texts reach everybody without MPI asking the receivers first, as it does
// before it sends more than some KiB. A longer text costs a second exchange, and a text that is longer still is cut
// off.
constexpr std::size_t kShortBytes = 60;
constexpr std::size_t kLongBytes = 1024;
// The store answers before its address is told, so a rank that does not reach it soon will not reach it later either.
constexpr auto kConnectTime = std::chrono::seconds(60);

using Texts = std::vector<std::string>;  // by rank

Result<Texts> exchange(const ProgramCommunicator& communicator, std::string own, std::size_t bytes, Deadline deadline) {
  own.resize(bytes, '\0');
  std::vector<char> all(bytes * static_cast<std::size_t>(communicator.size));
  LOCKSTEP_RETURN_IF_ERROR(communicator.all_gather(own, all, deadline));
  Texts texts;
  for (auto at = all.begin(); at != all.end(); at += static_cast<std::ptrdiff_t>(bytes)) {
    texts.emplace_back(at, std::find(at, at + static_cast<std::ptrdiff_t>(bytes), '\0'));
  }
  return texts;
}

// Every rank's text on every rank.
Result<Texts> tell_all(const ProgramCommunicator& communicator, const std::string& own, Deadline deadline) {
  constexpr char kIsShort = '=';
  const bool is_short = own.size() < kShortBytes;  // with the mark
  LOCKSTEP_ASSIGN_OR_RETURN(Texts texts,
                            exchange(communicator, is_short ? kIsShort + own : std::string(), kShortBytes, deadline));
  if (std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return text.empty(); })) {
    return exchange(communicator, own, kLongBytes, deadline);
  }
  for (std::string& text : texts) text.erase(0, 1);
  return texts;
}

constexpr std::string_view kRefused = "refused ";

// What a rank tells first: its network, or that it does not take part. Processes of equal networks reach one another by
// the loopback interface.
std::string introduction(int rank) {
  const auto facts = comm::machine_facts();
  if (!facts.ok()) return std::string(kRefused) + facts.status().message();
  const auto& [boot, network, user] = facts.value();
  const bool known = !boot.empty() && network != 0;
  return known ? fmt::format("{}:{}", boot, network) : fmt::format("unknown-{}", rank);
}

// At which other machines may reach this one.
std::vector<std::string> own_addresses() {
  auto addresses = addresses_of_machine();
  return addresses.ok() ? std::move(addresses).value() : std::vector<std::string>();
}

// MASTER_ADDR as a number, if it is one of these addresses of this machine; else empty.
std::string chosen_address(const std::vector<std::string>& own) {
  const auto master = Environment::of_process().get("MASTER_ADDR");
  if (!master) return {};
  const auto found = comm::look_up({*master, 0});
  if (!found.ok()) return {};
  for (const comm::Endpoint& one : found.value()) {
    if (std::find(own.begin(), own.end(), one.host) != own.end()) return one.host;
  }
  return {};
}

// For rank 0, whose addresses are `own`: where it serves the store. The chosen one, or the one from which the kernel
// would send to most of the other machines. `addresses`: of the ranks, with spaces between them.
Result<std::string> address_for_others(const std::vector<std::string>& own, const Texts& networks,
                                       const Texts& addresses) {
  if (std::string chosen = chosen_address(own); !chosen.empty()) return chosen;
  std::map<std::string, std::set<std::string>> reached;  // networks, by address
  for (std::size_t rank = 0; rank < networks.size(); ++rank) {
    if (networks[rank] == networks.front()) continue;
    std::istringstream words(addresses[rank]);
    for (std::string other; words >> other;) {
      const auto from = comm::address_towards(other);
      if (from.ok() && from.value() != other) reached[from.value()].insert(networks[rank]);
    }
  }
  std::string best;
  for (const std::string& address : own) {
    if (reached.contains(address) && (best.empty() || reached[address].size() > reached[best].size())) best = address;
  }
  if (!best.empty()) return best;
  return Status(
      ErrorCode::kUnavailable,
      fmt::format("the ranks are on several machines, and rank 0's ({}) has no address towards the others; it "
                  "has {}. Set MASTER_ADDR there to the address at which the others reach it",
                  host_name(), own.empty() ? "none" : fmt::format("{}", fmt::join(own, ", "))));
}

// "ENDPOINT KEY", or "error REASON".
std::string announcement(const Result<comm::ToldStore>& store) {
  if (!store.ok()) return "error " + store.status().message();
  return fmt::format("{} {}", store.value().endpoint.text(), store.value().job_key);
}

Result<comm::ToldStore> connect_to_told(const std::string& announced, Deadline deadline) {
  const std::size_t space = announced.find(' ');
  if (announced.starts_with("error ") || space == std::string::npos) {
    return Status(ErrorCode::kUnavailable, "rank 0 serves no store: " + announced.substr(announced.find(' ') + 1));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(comm::Endpoint endpoint,
                            comm::parse_endpoint(announced.substr(0, space), "the address of rank 0's store"));
  const Deadline soon = earlier(deadline, Deadline::after(kConnectTime));
  return comm::ToldStore::connect(std::move(endpoint), announced.substr(space + 1), soon);
}

// The ranks that have told a reason, each with it; ok: none has.
Status refusals_of(const Texts& reasons, ErrorCode code, const char* what) {
  std::map<std::string, std::vector<int>> by_reason;
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) by_reason[reasons[rank]].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [reason, ranks] : by_reason) {
    text += fmt::format("{}rank(s) {} {}: {}", text.empty() ? "" : "; ", fmt::join(ranks, ", "), what, reason);
  }
  return text.empty() ? Status() : Status(code, text);
}

Result<comm::ToldStore> open_told_store(const ProgramCommunicator& communicator, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Texts told, tell_all(communicator, introduction(communicator.rank), deadline));
  Texts refused;
  for (const std::string& text : told) {
    refused.push_back(text.starts_with(kRefused) ? text.substr(kRefused.size()) : std::string());
  }
  LOCKSTEP_RETURN_IF_ERROR(refusals_of(refused, ErrorCode::kMismatch, "could not take part"));

  const bool one_network = std::equal(told.begin() + 1, told.end(), told.begin());
  const std::vector<std::string> own = one_network ? std::vector<std::string>() : own_addresses();
  Texts addresses;
  if (!one_network) {
    LOCKSTEP_ASSIGN_OR_RETURN(addresses, tell_all(communicator, fmt::format("{}", fmt::join(own, " ")), deadline));
  }
  Result<comm::ToldStore> store = Status(ErrorCode::kUnavailable, "not told yet");
  if (communicator.rank == 0) {
    const Result<std::string> address = one_network ? loopback_address() : address_for_others(own, told, addresses);
    store = address.ok() ? comm::ToldStore::serve(address.value(), deadline) : address.status();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Texts announced,
                            tell_all(communicator, communicator.rank == 0 ? announcement(store) : "", deadline));
  if (communicator.rank != 0) store = connect_to_told(announced.front(), deadline);

  LOCKSTEP_ASSIGN_OR_RETURN(const Texts reached,
                            tell_all(communicator, store.ok() ? "" : store.status().message(), deadline));
  LOCKSTEP_RETURN_IF_ERROR(refusals_of(reached, ErrorCode::kUnavailable, "could not go on"));
  return store;
}

[[noreturn]] void reject_argument(ErrorCode code, const std::string& text) {
  throw ArgumentError(code, fmt::format("{}: {}", kInit, text));
}

}  // namespace

void check_communicator_options(const InitOptions& options, const BackendChoice& backends) {
  const ProgramCommunicator& communicator = *options.communicator;
  if (!options.init_method.empty() || options.store != nullptr) {
    reject_argument(ErrorCode::kInvalidArgument,
                    "give a communicator, or an init_method or a store, not both: the ranks need to meet once");
  }
  const auto agrees = [](int given, int own) { return given < 0 || given == own; };
  if (!agrees(options.rank, communicator.rank) || !agrees(options.world_size, communicator.size)) {
    reject_argument(
        ErrorCode::kInvalidArgument,
        fmt::format("the communicator says rank {} of {}, and the options say rank {} of {}; leave rank and "
                    "world_size out",
                    communicator.rank, communicator.size, options.rank, options.world_size));
  }
  check_mpi_of_program(backends, communicator.mpi, kInit);
}

void refuse_communicator(const ProgramCommunicator& communicator, const std::string& reason, Deadline deadline) {
  if (communicator.size == 1) return;
  static_cast<void>(tell_all(communicator, std::string(kRefused) + reason, deadline));
}

CommunicatorMeeting meet_through(const ProgramCommunicator& communicator, const std::string& group_name,
                                 Deadline deadline) {
  const int size = communicator.size;
  if (size == 1) {
    comm::RendezvousOptions alone;
    alone.rank = 0;
    alone.world_size = 1;
    alone.environment = Environment();
    auto met = comm::rendezvous(alone);
    if (!met.ok()) throw_status(met.status(), kInit);
    return {std::move(met).value(), {}};
  }
  auto store = open_told_store(communicator, deadline);
  const std::string who = fmt::format("{}: rank {} of {}", kInit, communicator.rank, size);
  if (!store.ok()) throw_status(store.status(), who);
  std::string job_key = store->job_key;
  auto met = comm::rendezvous_at(std::move(store).value(), communicator.rank, size, group_name, deadline);
  if (!met.ok()) throw_status(met.status(), kInit);
  return {std::move(met).value(), std::move(job_key)};
}

}  // namespace lockstep
