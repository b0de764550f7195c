// Training all the while: plans of a seed kill and freeze ranks of 2 to 8, on one to three machines in name. `./dev
// soak` runs this with as many kills as it is asked for; LOCKSTEP_TEST_SOAK_KILLS and LOCKSTEP_TEST_SOAK_SEED say so to
// the test.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "elastic/program.h"
#include "support/effort.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;

struct SoakPlan {
  unsigned number = 0;
  int world = 2;
  int machines = 1;
  int micro_batches = 2;
  bool adam = false;
  int copies = 0;             // of a sharded optimizer, as many as survive all kills at once; 0: a plain one
  std::vector<Death> faults;  // kills, then freezes

  int kills() const {
    return static_cast<int>(
        std::count_if(faults.begin(), faults.end(), [](const Death& one) { return one.frozen.count() == 0; }));
  }
};

SoakPlan make_plan(unsigned seed, unsigned number) {
  std::mt19937 random(seed * 100'003 + number);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  SoakPlan plan;
  plan.number = number;
  plan.world = 2 + below(7);
  plan.adam = below(2) == 0;
  plan.machines = 1 + below(std::min(3, plan.world));
  plan.micro_batches = plan.world + below(3);
  std::vector<int> ranks(plan.world);
  for (int rank = 0; rank < plan.world; ++rank) ranks[rank] = rank;
  std::shuffle(ranks.begin(), ranks.end(), random);
  const int kills = 1 + below(std::min(3, plan.world - 1));
  for (int i = 0; i < kills; ++i) plan.faults.push_back(random_death(ranks[i], random));
  if (kills > 1 && below(3) == 0) plan.faults.back() = {ranks[kills - 1], 0, Place::kRebuild};
  for (int i = below(3); i > 0; --i) {
    const int rank = ranks[below(plan.world)];
    plan.faults.push_back(
        {rank, below(11), static_cast<Place>(below(kPlaces)), {}, std::chrono::milliseconds(1 + below(700))});
  }
  if (below(2) == 0) plan.copies = kills + 1;
  return plan;
}

std::string describe(const SoakPlan& plan) {
  constexpr std::array kNames{"forward", "backward", "after backward", "update", "after step", "rebuild", "any time"};
  std::string text = fmt::format("plan {}: {} ranks on {} machine(s), {} copies of a sharded optimizer's state",
                                 plan.number, plan.world, plan.machines, plan.copies);
  for (const Death& one : plan.faults) {
    text += fmt::format(", rank {} {} in step {} ({})", one.number,
                        one.frozen.count() > 0 ? fmt::format("stands still for {} ms", one.frozen.count()) : "dies",
                        one.step, kNames.at(static_cast<std::size_t>(one.place)));
  }
  return text;
}

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

void train_by(const SoakPlan& plan, int rank, const std::function<void(const std::string&)>& tell) {
  Program mine{.micro_batches = plan.micro_batches, .adam = plan.adam, .copies = plan.copies, .deaths = plan.faults};
  mine.tell = tell;
  const ProcessGroupGuard guard("", kElasticWorld);
  train(mine, rank);
  const int left = get_world_size();
  const torch::Tensor weights = mine.weights();
  bool right = left == plan.world - plan.kills();
  for (const torch::Tensor& other : all_gather_object(weights)) right = right && torch::equal(weights, other);
  const torch::Tensor quiet = reference_weights({.micro_batches = plan.micro_batches, .adam = plan.adam});
  right = right && torch::allclose(weights, quiet, 1e-9, 1e-11);
  const double difference = (weights - quiet).abs().max().item<double>();
  tell(right ? "right" : fmt::format("wrong: {} ranks left, weights differ by {}", left, difference));
}

void run_rank_of(const SoakPlan& plan, int rank, const std::string& path) {
  ::setenv("LOCKSTEP_MACHINE", fmt::format("machine{}", rank % plan.machines).c_str(), /*replace=*/1);
  const auto tell = [path](const std::string& text) {
    std::ofstream(path, std::ios::app) << Clock::now().time_since_epoch().count() << ' ' << getpid() << ' '
                                       << text.substr(0, text.find('\n')) + "\n";
  };
  const Leftovers before = Leftovers::now();
  train_by(plan, rank, tell);
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
  int plans = 0, kills = 0, freezes = 0, hangs = 0, wrong_names = 0, wrong_weights = 0, left_overs = 0;
  std::vector<double> error, rebuilt, step;  // milliseconds after the death

  bool is_clean() const { return hangs + wrong_names + wrong_weights + left_overs == 0; }
};

// An error of a death names a process that has died; others have learnt of the death and form the world anew.
bool names_a_death(const std::string& error, const std::vector<int>& dead) {
  if (error.find("formed anew by reconfigure") != std::string::npos) return true;
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

// What was wrong with the plan, added to the tally; empty: nothing.
std::string judge(const SoakPlan& plan, const ScratchFolder& folder, Tally& tally) {
  std::vector<std::vector<Line>> ranks;
  std::vector<int> dead;
  std::vector<std::int64_t> deaths;
  for (int rank = 0; rank < plan.world; ++rank) {
    ranks.push_back(read_lines(folder.path(fmt::format("rank.{}", rank))));
    for (const Line& line : ranks.back()) {
      if (line.is("frozen")) ++tally.freezes;
      if (line.is("died")) dead.push_back(line.pid), deaths.push_back(line.time);
    }
  }
  std::sort(deaths.begin(), deaths.end());
  ++tally.plans;
  tally.kills += static_cast<int>(dead.size());
  std::string wrong;
  for (int rank = 0; rank < plan.world; ++rank) {
    const std::vector<Line>& lines = ranks[rank];
    if (!lines.empty() && lines.back().is("died")) continue;
    add_times(lines, deaths, tally);
    for (const Line& line : lines) {
      if (!line.is("error") || names_a_death(line.text, dead)) continue;
      ++tally.wrong_names;
      wrong += fmt::format("\n  rank {}: {}", rank, line.text);
    }
    const auto told = [&](std::string_view word) {
      return std::find_if(lines.begin(), lines.end(), [&](const Line& line) { return line.is(word); });
    };
    if (const auto differs = told("wrong"); differs != lines.end()) {
      ++tally.wrong_weights;
      wrong += fmt::format("\n  rank {}: {}", rank, differs->text);
    } else if (told("right") == lines.end()) {
      ++tally.hangs;
      wrong +=
          fmt::format("\n  rank {}: {}", rank, lines.empty() ? "has told nothing" : "last told: " + lines.back().text);
    } else if (lines.back().text != "end") {
      ++tally.left_overs;
      wrong += fmt::format("\n  rank {}: {}", rank, lines.back().text);
    }
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
    const SoakPlan plan = make_plan(seed, number);
    const ScratchFolder folder;
    std::filesystem::create_directory(folder.path("tmp"));
    run_processes(plan.world, [&](int rank) {
      ::setenv("TMPDIR", folder.path("tmp").c_str(), /*replace=*/1);
      run_mortal([&] { run_rank_of(plan, rank, folder.path(fmt::format("rank.{}", rank))); });
    });
    const std::string found = judge(plan, folder, tally);
    if (HasFailure() && found.empty()) ++tally.left_overs;
    if (HasFailure() || !found.empty()) wrong += fmt::format("\nseed {}, {}{}", seed, describe(plan), found);
  }
  fmt::print("soak of seed {}: {} plans, {} freezes\n", seed, tally.plans, tally.freezes);
  fmt::print(
      "| kills | hangs | wrong names | wrong weights | left-overs | to the error | to the rebuilt group | to the next "
      "step |\n"
      "|---|---|---|---|---|---|---|---|\n| {} | {} | {} | {} | {} | {} | {} | {} |\n(times: median / worst after the "
      "death)\n",
      tally.kills, tally.hangs, tally.wrong_names, tally.wrong_weights, tally.left_overs, times(tally.error),
      times(tally.rebuilt), times(tally.step));
  EXPECT_TRUE(tally.is_clean() && wrong.empty()) << wrong;
}

}  // namespace
}  // namespace lockstep::test
