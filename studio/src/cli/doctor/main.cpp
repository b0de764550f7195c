// The program behind `lockstep doctor` and `lockstep bench`. `lockstep` executes it for these commands, so the launcher
// does not load the engine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "arguments/words.h"
#include "base/standard_descriptors.h"
#include "doctor/checks.h"
#include "doctor/measure.h"
#include "launch/cores.h"

namespace {

using namespace lockstep;          // NOLINT(google-build-using-namespace)
using namespace lockstep::doctor;  // NOLINT(google-build-using-namespace)

constexpr int kUsageError = 2;

struct Arguments {
  bool json = false;
  bool quick = false;
  int nprocs = 0;
  std::string sizes = "4,4K,256K,4M,64M";
  double seconds = 0.5;
};

int fail(const Status& status) {
  std::fprintf(stderr, "lockstep: %s\n", status.message().c_str());
  return status.code() == ErrorCode::kInvalidArgument ? kUsageError : EXIT_FAILURE;
}

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
    if (!is_first_rank(environment)) return result.ok() ? EXIT_SUCCESS : fail(result.status());
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
  if (!sizes.ok()) return fail(sizes.status());
  options.sizes = sizes.value();
  options.seconds_each = arguments.seconds;
  options.ranks = arguments.nprocs > 0 ? arguments.nprocs : std::max(2, launch::usable_cores());
  const Environment environment = Environment::of_process();
  Findings ignored;
  if (const Status loopback = check_loopback(); !loopback.ok()) return fail(loopback);
  auto result = is_rank(environment) ? measure_in_job(options, ignored) : measure_here(options);
  if (!result.ok()) return fail(result.status());
  if (!is_first_rank(environment)) return EXIT_SUCCESS;
  const std::string text = arguments.json ? to_json(result.value()) : to_table(result.value());
  std::fputs(text.c_str(), stdout);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  CLI::App app("What is wrong with this machine, and how fast ranks communicate on it.", "lockstep");
  app.require_subcommand(1);
  Arguments arguments;
  CLI::App* doctor =
      app.add_subcommand("doctor", "Look for what is wrong with this machine; under `lockstep run`, with all");
  doctor->add_flag("--json", arguments.json, "As JSON");
  doctor->add_flag("--quick", arguments.quick, "Only look, without the self-test");
  CLI::App* measure =
      app.add_subcommand("bench", "Measure all_reduce on this machine; under `lockstep run`, with its ranks");
  measure->add_flag("--json", arguments.json, "As JSON");
  measure->add_option("--nprocs", arguments.nprocs, "Ranks. Default: one for each core, at least 2")
      ->check(CLI::Range(1, 1024));
  measure->add_option("--sizes", arguments.sizes, "Bytes of each rank's buffer. Default 4,4K,256K,4M,64M");
  measure->add_option("--seconds", arguments.seconds, "About how long each size is measured. Default 0.5")
      ->check(CLI::Range(0.0, 3600.0));
  try {
    cli::parse_words(app, {argv + 1, argv + argc});
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  const int exit_code = doctor->parsed() ? diagnose(arguments) : bench(arguments);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return fail(Status::from_errno("cannot write the output", errno));
}
