// Training all the while: plans of a seed kill and freeze ranks of 2 to 8, on one to three machines, delay, drop and
// truncate messages, and cut links. `./dev soak` runs this with as many kills as it is asked for;
// LOCKSTEP_TEST_SOAK_KILLS and LOCKSTEP_TEST_SOAK_SEED say so to the test.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>

#include "elastic/program.h"
#include "elastic/soak_plan.h"
#include "support/effort.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;
using Tell = std::function<void(const std::string&)>;

// What one rank has told.
struct Line {
  std::int64_t time = 0;  // steady clock, ns
  int pid = 0;
  std::string text;
  bool is(std::string_view word) const { return text.rfind(word, 0) == 0; }
};

std::vector<Line> read_lines(const std::string& path) {
  std::vector<Line> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    Line line;
    std::istringstream words(text);
    if (words >> line.time >> line.pid && std::getline(words >> std::ws, line.text)) lines.push_back(line);
  }
  return lines;
}

// The world that the plan's ranks make at their first and second start.
InitOptions world_of(const SoakPlan& plan, int start) {
  InitOptions options = kElasticWorld;
  if (start == 0) options.timeout = plan.timeout();
  if (plan.has_network) options.init_method = fmt::format("tcp://{}:{}", Machines::ipv4(0), 29500 + start);
  return options;
}

void train_by(const SoakPlan& plan, const Machines* machines, int rank, int start, const Tell& tell) {
  Program mine{.micro_batches = plan.micro_batches, .adam = plan.adam, .copies = plan.copies};
  mine.tell = tell;
  if (start == 0) mine.deaths = plan.faults;
  std::vector<std::unique_ptr<Process>> cuts;
  mine.in_update = [&](std::int64_t step) {
    if (start > 0) return;
    for (const LateFault& one : plan.messages) {
      if (one.rank == rank && one.step == step) arm(one.message, tell);
    }
    for (const Cut& one : plan.cuts) {
      if (one.rank != rank || one.step != step) continue;
      tell("cut");
      cuts.push_back(machines->cut_for(one.machine, one.time));
    }
  };
  const ProcessGroupGuard guard("", world_of(plan, start));
  train(mine, rank);
  disarm();
  for (const auto& cut : cuts) EXPECT_EQ(cut->finish().exit_code, 0);
  const torch::Tensor weights = mine.weights();
  bool right = true;
  for (const torch::Tensor& other : all_gather_object(weights)) right = right && torch::equal(weights, other);
  const torch::Tensor quiet = reference_weights({.micro_batches = plan.micro_batches, .adam = plan.adam});
  right = right && torch::allclose(weights, quiet, 1e-9, 1e-11);
  const double difference = (weights - quiet).abs().max().item<double>();
  tell(fmt::format("{} weights of {} ranks, which differ by {}", right ? "right" : "wrong", get_world_size(),
                   difference));
}

// An error that ends the training on all ranks makes them start again.
void train_to_the_end(const SoakPlan& plan, const Machines* machines, int rank, const Tell& tell) {
  try {
    return train_by(plan, machines, rank, /*start=*/0, tell);
  } catch (const std::exception& error) {
    if (plan.culprit < 0) throw;
    tell(std::string("ended ") + error.what());
  }
  train_by(plan, machines, rank, /*start=*/1, tell);
}

void take_place(const SoakPlan& plan, const Machines* machines, int rank) {
  const int machine = rank % plan.machines;
  if (machines == nullptr) {
    ::setenv("LOCKSTEP_MACHINE", fmt::format("machine{}", machine).c_str(), /*replace=*/1);
    return;
  }
  machines->enter(machine);
  ::setenv("MASTER_ADDR", Machines::ipv4(0).c_str(), /*replace=*/1);
}

void run_rank_of(const SoakPlan& plan, const Machines* machines, int rank, const std::string& path) {
  take_place(plan, machines, rank);
  const auto tell = [path](const std::string& text) {
    std::ofstream(path, std::ios::app) << Clock::now().time_since_epoch().count() << ' ' << getpid() << ' '
                                       << text.substr(0, text.find('\n')) + "\n";
  };
  const Leftovers before = Leftovers::now();
  train_to_the_end(plan, machines, rank, tell);
  std::string more;
  const Leftovers now = Leftovers::now();
  for (const int fd : now.descriptors) {
    std::error_code gone;
    if (!before.descriptors.contains(fd))
      more += " " + std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), gone).native();
  }
  if (now.children.size() > before.children.size()) more += " a child";
  tell(more.empty() ? "end" : "end with more than before:" + more);
}

struct Tally {
  int plans = 0, networks = 0, kills = 0, hangs = 0, wrong_names = 0, wrong_weights = 0, left_overs = 0;
  std::map<std::string, int> faults;         // by what the ranks have told
  std::vector<double> error, rebuilt, step;  // milliseconds after the death

  bool is_clean() const { return hangs + wrong_names + wrong_weights + left_overs == 0; }
};

// An error of a death names a process that has died; others have learnt of the death and form the world anew. The news
// of a death do not pass a cut link: behind it a rank sees only that connections break.
bool names_a_death(const std::string& error, const std::vector<int>& dead, bool has_cuts) {
  if (error.find("formed anew by reconfigure") != std::string::npos) return true;
  if (has_cuts && error.find("died, or the connection to it broke") != std::string::npos) return true;
  return std::any_of(dead.begin(), dead.end(),
                     [&](int pid) { return error.find(fmt::format("(pid {}", pid)) != std::string::npos; });
}

// The times of one rank, each after the death before it.
void add_times(const std::vector<Line>& lines, const std::vector<std::int64_t>& deaths, Tally& tally) {
  std::int64_t death = 0;
  bool has_error = false, is_rebuilt = false;
  for (const Line& line : lines) {
    const auto after = std::upper_bound(deaths.begin(), deaths.end(), line.time);
    if (after == deaths.begin()) continue;
    if (*std::prev(after) != death) death = *std::prev(after), has_error = is_rebuilt = false;
    const double time = static_cast<double>(line.time - death) / 1e6;
    if (line.is("error") && !has_error) has_error = true, tally.error.push_back(time);
    if (line.is("rebuilt") && !is_rebuilt) is_rebuilt = true, tally.rebuilt.push_back(time);
    if (line.is("step") && is_rebuilt) tally.step.push_back(time), is_rebuilt = false;
  }
}

// Whether the error says that the others wait for the culprit, or that its message is wrong. When its message is lost,
// the others wait for the receiver, or for a rank that waits for the receiver.
bool names_culprit(const std::string& error, const SoakPlan& plan) {
  std::smatch found;
  if (!std::regex_search(error, found, std::regex("(timed out|failed) on rank [0-9]+: "))) return false;
  const std::string why = found.suffix();
  if (plan.loses_message() && why.find("stopped inside it, or a rank that") != std::string::npos) return true;
  const std::regex name(fmt::format("rank(\\(s\\))? ([0-9]+, )*{}\\b", plan.culprit));
  return std::regex_search(why.substr(0, why.find("; called by")), name);
}

// Judges the lines of one rank that was not killed.
class RankJudge {
 public:
  RankJudge(const SoakPlan& plan, int rank, const std::vector<Line>& lines) : plan_(plan), rank_(rank), lines_(lines) {}

  // What was wrong, added to the tally; empty: nothing. `is_over`: the training has ended with an error on a rank.
  std::string judge(const std::vector<int>& dead, bool is_over, Tally& tally) {
    for (const Line& line : lines_) {
      const bool is_death = line.is("error") && plan_.culprit < 0;
      if (is_death && !names_a_death(line.text, dead, !plan_.cuts.empty())) add(tally.wrong_names, line.text);
      if (line.is("ended") && !names_culprit(line.text, plan_)) add(tally.wrong_names, line.text);
    }
    if (is_over && !has("ended")) add(tally.wrong_names, "no error, and others have one");
    // A rank whose step another rank has done for it does not die in this step.
    const std::string right = fmt::format("right weights of {} ranks", plan_.world - static_cast<int>(dead.size()));
    if (!has("right") && !has("wrong")) {
      add(tally.hangs, lines_.empty() ? "has told nothing" : "last told: " + lines_.back().text);
    } else if (!has(right)) {
      add(tally.wrong_weights, lines_.back().text == "end" ? lines_[lines_.size() - 2].text : lines_.back().text);
    } else if (lines_.back().text != "end") {
      add(tally.left_overs, lines_.back().text);
    }
    return wrong_;
  }
  bool has(std::string_view word) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const Line& line) { return line.is(word); });
  }

 private:
  void add(int& count, const std::string& text) {
    ++count;
    wrong_ += fmt::format("\n  rank {}: {}", rank_, text);
  }

  const SoakPlan& plan_;
  const int rank_;
  const std::vector<Line>& lines_;
  std::string wrong_;
};

// What was wrong with the plan, added to the tally; empty: nothing.
std::string judge(const SoakPlan& plan, const ScratchFolder& folder, Tally& tally) {
  std::vector<std::vector<Line>> ranks;
  std::vector<int> dead;
  std::vector<std::int64_t> deaths;
  bool is_over = false;
  for (int rank = 0; rank < plan.world; ++rank) {
    ranks.push_back(read_lines(folder.path(fmt::format("rank.{}", rank))));
    for (const Line& line : ranks.back()) {
      if (line.is("died")) dead.push_back(line.pid), deaths.push_back(line.time);
      for (const char* const fault : {"frozen", "delayed", "dropped", "truncated", "cut"})
        if (line.is(fault)) ++tally.faults[line.text.substr(0, line.text.find(" to "))];
      is_over = is_over || line.is("ended");
    }
  }
  std::sort(deaths.begin(), deaths.end());
  ++tally.plans;
  tally.networks += plan.has_network ? 1 : 0;
  tally.kills += static_cast<int>(dead.size());
  tally.faults["ended"] += is_over ? 1 : 0;
  std::string wrong;
  for (int rank = 0; rank < plan.world; ++rank) {
    const std::vector<Line>& lines = ranks[rank];
    if (!lines.empty() && lines.back().is("died")) continue;
    add_times(lines, deaths, tally);
    wrong += RankJudge(plan, rank, lines).judge(dead, is_over, tally);
  }
  const auto rest = std::distance(std::filesystem::directory_iterator(folder.path("tmp")), {});
  if (rest > 0) ++tally.left_overs, wrong += fmt::format("\n  {} temporary files are left", rest);
  return wrong;
}

std::string times(std::vector<double>& all) {
  if (all.empty()) return "-";
  std::sort(all.begin(), all.end());
  return fmt::format("{:.0f} / {:.0f} ms", all[all.size() / 2], all.back());
}

int number_in(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

TEST(TrainingSoakFault, PlansOfASeedEndWithTheWeightsOfAQuietRun) {
  const int kills = number_in("LOCKSTEP_TEST_SOAK_KILLS", repetitions(8));
  const auto seed = static_cast<unsigned>(number_in("LOCKSTEP_TEST_SOAK_SEED", 1));
  Tally tally;
  std::string wrong;
  // Forks inherit a failure of the test, so what judge() finds is said at the end, and the first failure is the last
  // plan.
  for (unsigned number = 0; tally.kills < kills && !HasFailure(); ++number) {
    const SoakPlan plan = SoakPlanner(seed, number).make();
    const ScratchFolder folder;
    std::optional<Machines> machines;
    if (plan.has_network) machines.emplace(plan.machines);
    std::filesystem::create_directory(folder.path("tmp"));
    run_processes(plan.world, [&](int rank) {
      ::setenv("TMPDIR", folder.path("tmp").c_str(), /*replace=*/1);
      run_mortal(
          [&] { run_rank_of(plan, machines ? &*machines : nullptr, rank, folder.path(fmt::format("rank.{}", rank))); });
    });
    const std::string found = judge(plan, folder, tally);
    if (HasFailure() && found.empty()) ++tally.left_overs;
    if (HasFailure() || !found.empty()) wrong += fmt::format("\nseed {}, {}{}", seed, describe(plan), found);
  }
  fmt::print("soak of seed {}: {} plans, {} of them over a network", seed, tally.plans, tally.networks);
  for (const auto& [fault, count] : tally.faults) fmt::print(", {} {}", count, fault);
  fmt::print(
      "\n| kills | hangs | wrong names | wrong weights | left-overs | to the error | to the rebuilt group | to the "
      "next "
      "step |\n"
      "|---|---|---|---|---|---|---|---|\n| {} | {} | {} | {} | {} | {} | {} | {} |\n(times: median / worst after the "
      "death)\n",
      tally.kills, tally.hangs, tally.wrong_names, tally.wrong_weights, tally.left_overs, times(tally.error),
      times(tally.rebuilt), times(tally.step));
  EXPECT_TRUE(tally.is_clean() && wrong.empty()) << wrong;
}

}  // namespace
}  // namespace lockstep::test
