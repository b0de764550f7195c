// The program behind `lockstep doctor` and `lockstep bench`. `lockstep` executes it for these commands, so the launcher
// does not load the engine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/standard_descriptors.h"
#include "doctor/checks.h"
#include "doctor/measure.h"
#include "launch/process/cores.h"
#include "options/command.h"

namespace {

using namespace lockstep;          // NOLINT(google-build-using-namespace)
using namespace lockstep::doctor;  // NOLINT(google-build-using-namespace)

struct Arguments {
  bool json = false;
  bool quick = false;
  std::optional<int> nprocs;
  std::string sizes = "4,4K,256K,4M,64M";
  double seconds = 0.5;
};

bool is_first_rank(const Environment& environment) {
  return environment.get("RANK").value_or("0") == "0";
}

void add(Findings& all, const Findings& more) {
  all.insert(all.end(), more.begin(), more.end());
}

int diagnose(const Arguments& arguments) {
  const Environment environment = Environment::of_process();
  Findings measured;
  if (!arguments.quick && check_loopback().ok()) {  // else its ranks would wait for one another
    // First, because the ranks of the self-test run this program up to here.
    MeasureOptions options;
    options.sizes = {64 << 20};
    const bool in_job = is_rank(environment);
    const auto result = in_job ? measure_in_job(options, measured) : measure_here(options);
    if (!is_first_rank(environment)) return result.ok() ? EXIT_SUCCESS : options::fail(result.status());
    measured.push_back(judge(result));
  }
  if (!is_first_rank(environment)) return EXIT_SUCCESS;
  Findings all;
  for (const auto check : {check_processor, check_memory, check_limits, check_gpus, check_network}) add(all, check(""));
  const std::string built_with = LOCKSTEP_TORCH_FOLDER;
  const std::string torch = built_with.empty() ? "" : environment.get("LOCKSTEP_TORCH_DIR").value_or(built_with);
  add(all, check_libtorch(torch, LOCKSTEP_TORCH_VERSION));
  add(all, measured);
  const std::string text = arguments.json ? to_json(all) : to_text(all);
  std::fputs(text.c_str(), stdout);
  const bool any = std::any_of(all.begin(), all.end(), [](const Finding& f) { return f.level == Level::kProblem; });
  return any ? EXIT_FAILURE : EXIT_SUCCESS;
}

int bench(const Arguments& arguments) {
  MeasureOptions options;
  auto sizes = parse_sizes(arguments.sizes);
  if (!sizes.ok()) return options::fail(sizes.status());
  options.sizes = sizes.value();
  options.seconds_each = arguments.seconds;
  options.ranks = arguments.nprocs.value_or(std::max(2, launch::usable_cores()));
  const Environment environment = Environment::of_process();
  Findings ignored;
  if (const Status loopback = check_loopback(); !loopback.ok()) return options::fail(loopback);
  auto result = is_rank(environment) ? measure_in_job(options, ignored) : measure_here(options);
  if (!result.ok()) return options::fail(result.status());
  if (!is_first_rank(environment)) return EXIT_SUCCESS;
  const std::string text = arguments.json ? to_json(result.value()) : to_table(result.value());
  std::fputs(text.c_str(), stdout);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  options::Command app{.name = "lockstep",
                       .help = "What is wrong with this machine, and how fast ranks communicate on it."};
  Arguments arguments;
  const auto& doctor = app.add("doctor", "Look for what is wrong with this machine; under `lockstep run`, with all",
                               [&] { return diagnose(arguments); });
  doctor.key("json", arguments.json, "As JSON");
  doctor.key("quick", arguments.quick, "Only look, without the self-test");
  const auto& measure = app.add("bench", "Measure all_reduce on this machine; under `lockstep run`, with its ranks",
                                [&] { return bench(arguments); });
  measure.key("json", arguments.json, "As JSON");
  measure.key("nprocs", arguments.nprocs, "Ranks. None: one for each core, at least 2").between(1, 1024);
  measure.key("sizes", arguments.sizes, "Bytes of each rank's buffer");
  measure.key("seconds", arguments.seconds, "About how long each size is measured").between(0, 3600);
  return options::run(app, {argv + 1, argv + argc});
}
