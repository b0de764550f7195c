#include "launch/job/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kOften{200};  // for numbers: a recorder keeps 1024 operations
constexpr std::chrono::seconds kSecond{1};

struct Metric {
  std::string_view name;
  std::string_view type;
  std::string_view help;
};
constexpr std::array kMetrics{
    Metric{"lockstep_operations_total", "counter", "Operations that a rank has begun, by kind."},
    Metric{"lockstep_operation_bytes_total", "counter", "Bytes of these operations: the larger of input and output."},
    Metric{"lockstep_operations_unseen_total", "counter",
           "Operations that are in no other number, because the recorder had forgotten them at the next look."},
    Metric{"lockstep_time_seconds_total", "counter", "Where a rank's time went."},
    Metric{"lockstep_steps_total", "counter", "Steps of the training that a rank has ended."},
    Metric{"lockstep_step_seconds", "histogram", "How long steps of the training took."},
};

double in_seconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

std::string head(const Metric& metric) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric.name, metric.help, metric.name, metric.type);
}

std::string single_sample(const Metric& metric, int value) {
  return head(metric) + fmt::format("{} {}\n", metric.name, value);
}

}  // namespace

std::string SlowRankRule::look(const std::vector<flight::RankRecord>& records) {
  std::uint64_t operations = 0;
  for (const flight::RankRecord& record : records) operations += record.total;
  if (operations == operations_) return {};
  operations_ = operations;
  const auto found = flight::find_laggard(records, least_);
  const int who = found ? records[found->record].rank : kNobody;
  looks_ = who == candidate_ ? looks_ + 1 : 1;
  candidate_ = who;
  if (looks_ < kLooks || who == said_) return {};
  const int before = std::exchange(said_, who);
  if (who == kNobody) return fmt::format("rank {} is no longer slow", before);
  return flight::describe(records[found->record], *found);
}

void RankNumbers::add(const flight::RankRecord& record, const flight::Waits& waits, std::size_t index) {
  const std::pair process(record.pid, record.real);
  if (process != process_) {
    process_ = process;
    serial_ = input_until_ = steps_until_ = last_step_ = 0;
    until_ = record.operations.empty() ? record.now : record.operations.front().called;
  }
  const std::uint64_t unseen_before = unseen_;
  add_operations(record);
  add_steps(record);
  // What the recorder has forgotten may have been anything.
  const bool is_whole = unseen_ == unseen_before || record.operations.empty();
  const std::uint64_t begin = is_whole ? until_ : std::max(until_, record.operations.front().called);
  flight::TimeSplit split = waits.split(index, begin, record.now);
  split.input = std::min(record.input - std::min(input_until_, record.input), split.compute());
  time_.span += split.span;
  time_.input += split.input;
  time_.communication += split.communication;
  time_.waiting += split.waiting;
  until_ = std::max(until_, record.now);
  input_until_ = record.input;
}

void RankNumbers::add_operations(const flight::RankRecord& record) {
  std::uint64_t seen = 0;
  std::uint64_t last = serial_;
  for (const flight::Operation& operation : record.operations) {
    if (operation.serial <= serial_) continue;
    Count& count = operations_[operation.op];
    ++count.calls;
    count.bytes += std::max(operation.input, operation.output) * flight::type_bytes(operation.type);
    ++seen;
    last = operation.serial;
  }
  unseen_ += last - serial_ - seen;
  serial_ = last;
}

void RankNumbers::add_steps(const flight::RankRecord& record) {
  const std::uint64_t done = record.steps_done - std::min(steps_until_, record.steps_done);
  steps_ += done;
  steps_until_ = std::max(steps_until_, record.steps_done);
  bool is_next = last_step_ != 0 && done <= record.steps.size();
  for (const flight::StepEnd& step : record.steps) {
    if (step.ended <= last_step_) continue;
    if (is_next) {
      const double time = in_seconds(step.ended - last_step_);
      step_seconds_ += time;
      ++histogram_[static_cast<std::size_t>(std::lower_bound(kSteps.begin(), kSteps.end(), time) - kSteps.begin())];
    }
    is_next = true;
    last_step_ = step.ended;
  }
}

void RankNumbers::print(int rank, std::map<std::string, std::string>& lines) const {
  const auto add = [&](const std::string& metric, const std::string& suffix, const std::string& labels, auto value) {
    lines[metric] += fmt::format("{}{}{{rank=\"{}\"{}}} {}\n", metric, suffix, rank, labels, value);
  };
  for (const auto& [op, count] : operations_) {
    const std::string label = fmt::format(",operation=\"{}\"", op == flight::Op::kOther ? "refused" : name_of(op));
    add("lockstep_operations_total", "", label, count.calls);
    add("lockstep_operation_bytes_total", "", label, count.bytes);
  }
  add("lockstep_operations_unseen_total", "", "", unseen_);
  const auto part = [&](const char* name, std::uint64_t time) {
    add("lockstep_time_seconds_total", "", fmt::format(",part=\"{}\"", name), in_seconds(time));
  };
  part("input", time_.input);
  part("compute", time_.compute());
  part("communication", time_.communication);
  part("waiting", time_.waiting);
  add("lockstep_steps_total", "", "", steps_);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < histogram_.size(); ++i) {
    count += histogram_[i];
    const std::string bound = i < kSteps.size() ? fmt::format("{}", kSteps[i]) : "+Inf";
    add("lockstep_step_seconds", "_bucket", fmt::format(",le=\"{}\"", bound), count);
  }
  add("lockstep_step_seconds", "_sum", "", step_seconds_);
  add("lockstep_step_seconds", "_count", "", count);
}

Result<std::unique_ptr<RankWatch>> RankWatch::start(const JobOptions& options, Console& console) {
  std::unique_ptr<RankWatch> watch(new RankWatch(options, console));
  if (!options.metrics_port) return watch;
  LOCKSTEP_ASSIGN_OR_RETURN(watch->server_, MetricsServer::listen(options.metrics_address, *options.metrics_port));
  console.say("lockstep: metrics are at " + watch->server_->url());
  return watch;
}

void RankWatch::begin_attempt(const JobSpec& job) {
  first_rank_ = job.first_rank;
  restarts_ = job.restarts;
  slow_.reset();
  judge_at_ = look_at_ = Deadline::never();
  if (options_.slow_rank > 0 && job.local_world_size > 1) {
    constexpr double kPercent = 0.01;
    slow_ = std::make_unique<SlowRankRule>(kPercent * options_.slow_rank);
    judge_at_ = Deadline::after(kSecond);
  }
  if (server_ != nullptr) look_at_ = Deadline::after(kOften);
}

void RankWatch::add_to(std::vector<pollfd>& polled) const {
  if (server_ != nullptr) server_->add_to(polled);
}

Deadline RankWatch::next_due() const {
  const Deadline look = earlier(look_at_, judge_at_);
  return server_ != nullptr ? earlier(look, server_->next_due()) : look;
}

void RankWatch::serve(const Recorders& recorders, int running) {
  running_ = running;
  if (look_at_.expired() || judge_at_.expired()) look(recorders);
  if (server_ != nullptr) server_->serve([&] { return text(); });
}

void RankWatch::end_attempt(const Recorders& recorders) {
  running_ = 0;
  slow_.reset();
  if (server_ != nullptr) look(recorders);
}

void RankWatch::look(const Recorders& recorders) {
  std::vector<flight::RankRecord> records;
  std::vector<int> places;
  const std::vector<std::string> paths = recorders.paths();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (paths[i].empty()) continue;
    auto record = flight::read_record(paths[i]);
    if (!record.ok()) continue;  // the rank has recorded nothing yet
    records.push_back(std::move(record).value());
    places.push_back(first_rank_ + static_cast<int>(i));
  }
  if (server_ != nullptr) {
    const flight::Waits waits(records);
    for (std::size_t i = 0; i < records.size(); ++i) ranks_[places[i]].add(records[i], waits, i);
    look_at_ = Deadline::after(kOften);
  }
  if (slow_ == nullptr || !judge_at_.expired()) return;
  judge_at_ = Deadline::after(kSecond);
  const std::string said = slow_->look(records);
  if (!said.empty()) console_.say("lockstep: " + said);
}

std::string RankWatch::text() const {
  std::string text = single_sample(
      {"lockstep_workers", "gauge", "Workers that this launcher has started the job with."}, options_.workers);
  text += single_sample({"lockstep_workers_alive", "gauge", "Workers of this launcher that run."}, running_);
  text += single_sample(
      {"lockstep_restarts_total", "counter", "How often all workers were started again after a failure."}, restarts_);
  text +=
      single_sample({"lockstep_deaths_survived_total", "counter", "Workers that died while the job went on."}, deaths_);
  std::map<std::string, std::string> lines;
  for (const auto& [rank, numbers] : ranks_) numbers.print(rank, lines);
  for (const Metric& metric : kMetrics) text += head(metric) + lines[std::string(metric.name)];
  return text;
}

}  // namespace lockstep::launch
