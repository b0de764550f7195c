#include "doctor/measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>

#include "base/host.h"
#include "lockstep/base/fd.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/store/rendezvous.h"

namespace lockstep::doctor {
namespace {

using Clock = std::chrono::steady_clock;

// Nobody waits longer for a rank that hangs.
constexpr std::chrono::minutes kPatience{2};

// Where a process of measure_here puts its results.
constexpr const char* kResults = "LOCKSTEP_DOCTOR_RESULTS";

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A rank of the world that the environment describes.
class Rank {
 public:
  Status join() {
    comm::RendezvousOptions meeting;
    meeting.timeout = kPatience;
    LOCKSTEP_ASSIGN_OR_RETURN(rendezvous_, comm::rendezvous(meeting));
    LOCKSTEP_ASSIGN_OR_RETURN(arena_, comm::SharedArena::create());
    comm::CommunicatorOptions options;
    options.rank = rendezvous_.rank;
    options.group_size = rendezvous_.world_size;
    options.arena = arena_;
    options.timeout = kPatience;
    LOCKSTEP_ASSIGN_OR_RETURN(communicator_, comm::Communicator::create(rendezvous_.store, options));
    return {};
  }
  ~Rank() {
    communicator_.reset();
    (void)rendezvous_.release();  // others may still use it
  }
  int rank() const { return rendezvous_.rank; }

  Result<Measurement> measure(std::size_t bytes, double seconds);
  // How far the clock of `other` is ahead of rank 0's; both call it.
  Result<double> clock_ahead(int other);
  Status gather_hosts(std::vector<std::string>& hosts);
  int world_size() const { return rendezvous_.world_size; }

 private:
  Status barrier() { return communicator_->run(comm::Barrier{}, Deadline::after(kPatience)); }
  // The largest of all ranks, everywhere.
  Result<double> slowest(double value) {
    const comm::AllReduce maximum{&value, &value, 1, comm::DataType::kFloat64, comm::ReduceOp::kMax};
    LOCKSTEP_RETURN_IF_ERROR(communicator_->run(maximum, Deadline::after(kPatience)));
    return value;
  }
  // The time of one all-reduce; checks its result.
  Result<double> reduce_once(std::span<float> data);
  Result<double> copy_once(std::span<float> from, std::span<float> to);

  comm::Rendezvous rendezvous_;
  std::shared_ptr<comm::SharedArena> arena_;
  std::unique_ptr<comm::Communicator> communicator_;
};

Result<double> Rank::reduce_once(std::span<float> data) {
  std::fill(data.begin(), data.end(), static_cast<float>(rank() + 1));
  LOCKSTEP_RETURN_IF_ERROR(barrier());
  const auto begin = Clock::now();
  const comm::AllReduce sum{data.data(), data.data(), data.size(), comm::DataType::kFloat32, comm::ReduceOp::kSum};
  LOCKSTEP_RETURN_IF_ERROR(communicator_->run(sum, Deadline::after(kPatience)));
  const double seconds = since(begin);
  const auto expected = 0.5F * static_cast<float>(world_size() * (world_size() + 1));
  const bool right = std::all_of(data.begin(), data.end(), [&](float value) { return value == expected; });
  if (!right) return Status(ErrorCode::kInternal, fmt::format("rank {}: an all_reduce gave a wrong sum", rank()));
  return slowest(seconds);
}

Result<double> Rank::copy_once(std::span<float> from, std::span<float> to) {
  LOCKSTEP_RETURN_IF_ERROR(barrier());
  const auto begin = Clock::now();
  std::memcpy(to.data(), from.data(), from.size_bytes());
  return slowest(since(begin));
}

Result<Measurement> Rank::measure(std::size_t bytes, double seconds) {
  const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float));
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte * memory, arena_->allocate(count * sizeof(float)));
  const std::span<float> data(reinterpret_cast<float*>(memory), count);
  std::vector<float> other(count);
  Measurement result;
  result.bytes = data.size_bytes();
  result.ranks = world_size();
  result.copy_seconds = std::numeric_limits<double>::max();
  std::vector<double> times;
  LOCKSTEP_ASSIGN_OR_RETURN(const double first, reduce_once(data));
  // All ranks come to the same number, because `first` is the same everywhere.
  const int repetitions = std::clamp(static_cast<int>(seconds / std::max(first * 3, 1e-6)), 5, 1000);
  for (int i = 0; i < repetitions; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double time, reduce_once(data));
    times.push_back(time);
  }
  for (int i = 0; i < std::min(repetitions, 10) + 1; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double time, copy_once(data, other));
    if (i > 0) result.copy_seconds = std::min(result.copy_seconds, time);  // the first touches new pages
  }
  arena_->deallocate(memory);
  std::sort(times.begin(), times.end());
  result.least_seconds = times.front();
  result.median_seconds = times[times.size() / 2];
  return result;
}

Result<double> Rank::clock_ahead(int other) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const Deadline deadline = Deadline::after(kPatience);
  double best = 0;
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < 10; ++i) {
    double theirs = 0;
    if (rank() == 0) {
      const double begin = now();
      LOCKSTEP_RETURN_IF_ERROR(communicator_->run(comm::Send{{&begin, sizeof begin}, other, 0}, deadline));
      LOCKSTEP_RETURN_IF_ERROR(communicator_->run(comm::Receive{{&theirs, sizeof theirs}, other, 0}, deadline));
      const double end = now();
      // The fastest exchange is the most exact one.
      if (end - begin < least) {
        least = end - begin;
        best = theirs - (begin + end) / 2;
      }
    } else {
      LOCKSTEP_RETURN_IF_ERROR(communicator_->run(comm::Receive{{&theirs, sizeof theirs}, 0, 0}, deadline));
      const double mine = now();
      LOCKSTEP_RETURN_IF_ERROR(communicator_->run(comm::Send{{&mine, sizeof mine}, 0, 0}, deadline));
    }
  }
  return best;
}

Status Rank::gather_hosts(std::vector<std::string>& hosts) {
  constexpr std::size_t kLength = 64;
  std::array<char, kLength> mine{};
  host_name().copy(mine.data(), kLength - 1);
  std::vector<std::array<char, kLength>> all(static_cast<std::size_t>(world_size()));
  comm::AllGather gather;
  gather.input = {mine.data(), kLength};
  for (auto& host : all) gather.outputs.push_back({host.data(), kLength});
  LOCKSTEP_RETURN_IF_ERROR(communicator_->run(gather, Deadline::after(kPatience)));
  for (const auto& host : all) hosts.emplace_back(host.data());
  return {};
}

Result<std::vector<Measurement>> measure_all(Rank& rank, const MeasureOptions& options) {
  std::vector<Measurement> results;
  for (const std::size_t bytes : options.sizes) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Measurement one, rank.measure(bytes, options.seconds_each));
    results.push_back(one);
  }
  return results;
}

Status compare_hosts(Rank& rank, Findings& findings) {
  std::vector<std::string> hosts;
  LOCKSTEP_RETURN_IF_ERROR(rank.gather_hosts(hosts));
  std::vector<std::string> seen{hosts.front()};
  for (int other = 1; other < rank.world_size(); ++other) {
    const std::string& host = hosts[static_cast<std::size_t>(other)];
    if (std::find(seen.begin(), seen.end(), host) != seen.end()) continue;
    seen.push_back(host);
    if (rank.rank() != 0 && rank.rank() != other) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const double ahead, rank.clock_ahead(other));
    const std::string text =
        fmt::format("the clock of {} differs from that of {} by {:+.3f} s", host, hosts.front(), ahead);
    findings.push_back(std::abs(ahead) < 1
                           ? ok("clocks", text)
                           : warning("clocks", text, "logs do not fit together: run chrony or ntpd on all"));
  }
  findings.push_back(ok("machines", fmt::format("{} ranks on {} machines", rank.world_size(), seen.size())));
  return {};
}

}  // namespace

bool is_rank(const Environment& environment) {
  return environment.has("RANK") && environment.has("WORLD_SIZE") && !environment.has(kResults);
}

Result<std::vector<Measurement>> measure_in_job(const MeasureOptions& options, Findings& findings) {
  Rank rank;
  LOCKSTEP_RETURN_IF_ERROR(rank.join());
  LOCKSTEP_RETURN_IF_ERROR(compare_hosts(rank, findings));
  return measure_all(rank, options);
}

Result<std::vector<Measurement>> measure_here(const MeasureOptions& options) {
  // Rank 0 writes its results into memory of this process. It finds it under /proc, so nothing has a name on a disk.
  const Fd results(memfd_create("lockstep-doctor", MFD_CLOEXEC));
  if (!results.valid()) return Status::from_errno("cannot make a file in memory", errno);
  launch::SpawnOptions spawning;
  spawning.nprocs = options.ranks;
  spawning.timeout = 5 * kPatience;
  spawning.environment = {{kResults, fmt::format("/proc/{}/fd/{}", getpid(), results.get())}};
  const auto work = [&](int number) {
    Rank rank;
    Status status = rank.join();
    if (!status.ok()) throw std::runtime_error(status.message());
    auto measured = measure_all(rank, options);
    if (!measured.ok()) throw std::runtime_error(measured.status().message());
    if (number != 0) return;
    const Fd out(open(Environment::of_process().get(kResults).value_or("").c_str(), O_WRONLY | O_CLOEXEC));
    const auto bytes = std::as_bytes(std::span(*measured));
    if (write(out.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("cannot hand over the results");
    }
  };
  LOCKSTEP_RETURN_IF_ERROR(launch::spawn(work, spawning));
  std::vector<Measurement> measured(options.sizes.size());
  const auto bytes = std::as_writable_bytes(std::span(measured));
  if (pread(results.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Status(ErrorCode::kInternal, "the ranks of the measurement ended without results");
  }
  return measured;
}

Finding judge(const Result<std::vector<Measurement>>& measured) {
  if (!measured.ok()) {
    return problem("self-test", measured.status().message(),
                   "two ranks must be able to share memory here; docs/errors.md explains the error");
  }
  const Measurement& large = measured.value().back();
  const double share = large.copy_seconds / large.least_seconds;
  const std::string text = fmt::format(
      "an all_reduce of {} MiB on {} ranks takes {:.2f} ms ({:.1f} GB/s); a memcpy of as many bytes takes {:.2f} ms, "
      "so "
      "this is {:.0f} % of what memory gives",
      large.bytes >> 20U, large.ranks, large.least_seconds * 1e3, double(large.bytes) / large.least_seconds / 1e9,
      large.copy_seconds * 1e3, share * 100);
  if (share > 0.4) return ok("self-test", text);
  return warning("self-test", text,
                 "other programs use the cores or the memory, or the machine is shared with others "
                 "(steal time in top): try again on an idle machine");
}

}  // namespace lockstep::doctor
