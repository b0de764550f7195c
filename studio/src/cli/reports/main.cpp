// The program behind `lockstep report` and `lockstep scaling`, which `lockstep` executes for these commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "arguments/words.h"
#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "launch/cores.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/report/report.h"
#include "lockstep/report/scaling.h"
#include "report/scaling/runs.h"

namespace {

using lockstep::Result;
using lockstep::Status;
using lockstep::report::ScalingKind;
using lockstep::report::ScalingOptions;
using lockstep::report::ScalingTable;

constexpr int kUsageError = 2;

// What is printed is for people. When nobody reads it any more, that is no error, as it would be for fmt::print.
void tell(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
}

int fail(const Status& status) {
  tell(stderr, fmt::format("lockstep: {}\n", lockstep::printable(status.message())));
  return status.code() == lockstep::ErrorCode::kInvalidArgument ? kUsageError : EXIT_FAILURE;
}

struct Arguments {
  std::string folder;
  std::string file;
  std::vector<int> processes = {1, 2};
  int runs = 1;
  bool weak = false;
  bool strong = false;
  std::string out = "scaling";
};

int make_report(const Arguments& arguments) {
  const std::filesystem::path file = arguments.file.empty() ? std::filesystem::path(arguments.folder) / "report.html"
                                                            : std::filesystem::path(arguments.file);
  if (const Status status = lockstep::report::write_report(arguments.folder, file); !status.ok()) return fail(status);
  fmt::print("{}\n", lockstep::printable(file.native()));
  return EXIT_SUCCESS;
}

Status write_text(const std::filesystem::path& path, const std::string& text) {
  LOCKSTEP_ASSIGN_OR_RETURN(lockstep::AtomicFile file, lockstep::AtomicFile::create(path));
  LOCKSTEP_RETURN_IF_ERROR(file.append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  return file.commit();
}

std::string table_text(const ScalingOptions& options, const ScalingTable& table, bool complete) {
  return fmt::format("\n{} scaling, median of {}{} run{} (smallest to largest)\n\n{}\n{}",
                     options.kind == ScalingKind::kWeak ? "weak" : "strong", complete ? "" : "up to ", options.runs,
                     options.runs == 1 ? "" : "s", lockstep::report::to_text(table), lockstep::report::to_bars(table));
}

// Writes the files of the table. The text that names them, for people.
Result<std::string> write_files(const ScalingOptions& options, const ScalingTable& table) {
  LOCKSTEP_RETURN_IF_ERROR(lockstep::report::write_scaling(table, options.folder));
  LOCKSTEP_RETURN_IF_ERROR(write_text(options.folder / "scaling.svg", lockstep::report::to_svg(table)));
  LOCKSTEP_RETURN_IF_ERROR(lockstep::report::write_report(options.folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto pages, lockstep::report::write_run_reports(options, table));
  std::string text = fmt::format("\ntable:  {0}/scaling.json\nplot:   {0}/scaling.svg\nreport: {0}/report.html\n",
                                 lockstep::printable(options.folder.native()));
  for (const std::filesystem::path& page : pages) text += "        " + lockstep::printable(page.native()) + "\n";
  return text;
}

int measure_scaling(const Arguments& arguments, std::vector<std::string> command) {
  if (command.empty()) {
    fmt::print(stderr,
               "lockstep: expected the program after --, for example: lockstep scaling --procs 1,2 -- ./train\n");
    return kUsageError;
  }
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const ScalingOptions options{.processes = arguments.processes,
                               .runs = arguments.runs,
                               .kind = arguments.weak ? ScalingKind::kWeak : ScalingKind::kStrong,
                               .folder = arguments.out,
                               .launcher = self.parent_path() / "lockstep",
                               .command = std::move(command),
                               .cores = lockstep::launch::usable_cores()};
  std::signal(SIGPIPE, SIG_IGN);
  const auto say = [](const std::string& line) { tell(stderr, line + "\n"); };
  const auto [table, status, signal] = lockstep::report::measure_scaling(options, say);
  const auto end = [signal = signal](const Status& why) {
    const int code = fail(why);
    return signal == 0 ? code : 128 + signal;
  };
  if (table.rows.empty()) return end(status);
  // The files come first: nothing that happens to the terminal costs the measurements.
  const Result<std::string> files = write_files(options, table);
  tell(stdout, table_text(options, table, status.ok()));
  if (files.ok()) tell(stdout, files.value());
  std::fflush(stdout);  // before the errors
  const int exit_code = files.ok() ? EXIT_SUCCESS : fail(files.status());
  if (status.ok()) return exit_code;
  return end(Status(status.code(), fmt::format("{}; the table lacks these runs: {}", status.message(),
                                               lockstep::report::missing_runs(options, table))));
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  CLI::App app("Pictures of training runs.", "lockstep");
  app.require_subcommand(1);
  Arguments arguments;
  CLI::App* report = app.add_subcommand("report", "Make report.html from the log of a run");
  report->add_option("FOLDER", arguments.folder, "Folder with run.jsonl, or with the table of lockstep scaling")
      ->required();
  report->add_option("-o,--out", arguments.file, "The page to write. Default: report.html in that folder");
  CLI::App* scaling = app.add_subcommand(
      "scaling", "Run a program with several numbers of processes, and compare: scaling [options] -- PROGRAM ...");
  scaling->add_option("--procs", arguments.processes, "Numbers of processes, for example 1,2,4. Default 1,2")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  scaling->add_option("--runs", arguments.runs, "Runs with each number, in turn. Default 1")
      ->check(CLI::Range(1, 1000));
  CLI::Option* weak = scaling->add_flag("--weak", arguments.weak, "Each process has a fixed amount of work");
  scaling->add_flag("--strong", arguments.strong, "All processes share a fixed amount of work. The default")
      ->excludes(weak);
  scaling->add_option("-o,--out", arguments.out, "Folder for the table, the plot and the runs. Default: scaling");
  // What is after the "--" of scaling is the program, whatever it looks like.
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_scaling = !words.empty() && words.front() == scaling->get_name();
  const auto dashes = is_scaling ? std::find(words.begin(), words.end(), "--") : words.end();
  try {
    lockstep::cli::parse_words(app, {words.begin(), dashes});
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  try {
    if (report->parsed()) return make_report(arguments);
    return measure_scaling(arguments, {dashes == words.end() ? dashes : dashes + 1, words.end()});
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", lockstep::printable(error.what()));
    return EXIT_FAILURE;
  }
}
