// The program behind `lockstep report` and `lockstep scaling`, which `lockstep` executes for these commands.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/poll.h"
#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "cli/run_program.h"
#include "launch/process/cores.h"
#include "lockstep/report/report.h"
#include "lockstep/report/scaling.h"
#include "options/command.h"
#include "report/scaling/runs.h"

namespace {

using lockstep::Result;
using lockstep::Status;
using lockstep::report::ScalingKind;
using lockstep::report::ScalingOptions;
using lockstep::report::ScalingTable;

// What is printed is for people. When nobody reads it any more, that is no error, as it would be for fmt::print.
void tell(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
}

int fail(const Status& status) {
  return lockstep::options::fail(Status(status.code(), lockstep::printable(status.message())));
}

struct Arguments {
  std::string folder;
  std::string file;
  std::vector<int> processes = {1, 2};
  int runs = 1;
  bool weak = false;
  bool strong = false;
  std::string out = "scaling";
  std::vector<std::string> program;
};

int make_report(const Arguments& arguments) {
  const std::filesystem::path file = arguments.file.empty() ? std::filesystem::path(arguments.folder) / "report.html"
                                                            : std::filesystem::path(arguments.file);
  if (const Status status = lockstep::report::write_report(arguments.folder, file); !status.ok()) return fail(status);
  fmt::print("{}\n", lockstep::printable(file.native()));
  return EXIT_SUCCESS;
}

std::string table_text(const ScalingOptions& options, const ScalingTable& table, bool complete) {
  return fmt::format("\n{} scaling, median of {}{} run{} (smallest to largest)\n\n{}",
                     options.kind == ScalingKind::kWeak ? "weak" : "strong", complete ? "" : "up to ", options.runs,
                     options.runs == 1 ? "" : "s", lockstep::report::to_text(table));
}

// Writes the files of the table. The text that names them, for people.
Result<std::string> write_files(const ScalingOptions& options, const ScalingTable& table) {
  LOCKSTEP_RETURN_IF_ERROR(lockstep::report::write_scaling(table, options.folder));
  LOCKSTEP_RETURN_IF_ERROR(lockstep::report::write_report(options.folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto pages, lockstep::report::write_run_reports(options, table));
  std::string text = fmt::format("\ntable:  {0}/scaling.json\nreport: {0}/report.html\n",
                                 lockstep::printable(options.folder.native()));
  for (const std::filesystem::path& page : pages) text += "        " + lockstep::printable(page.native()) + "\n";
  return text;
}

int launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "lockstep");
  std::vector<char*> words;
  for (std::string& word : arguments) words.push_back(word.data());
  return lockstep::cli::run_program(static_cast<int>(words.size()), words.data(),
                                    std::make_shared<lockstep::options::Table>());
}

int measure_scaling(const Arguments& arguments) {
  if (arguments.program.empty()) {
    return fail(Status(lockstep::ErrorCode::kInvalidArgument,
                       "expected the program after --, for example: lockstep scaling --procs 1,2 -- ./train"));
  }
  if (arguments.weak && arguments.strong) {
    return fail(Status(lockstep::ErrorCode::kInvalidArgument, "--weak and --strong exclude one another"));
  }
  const ScalingOptions options{.processes = arguments.processes,
                               .runs = arguments.runs,
                               .kind = arguments.weak ? ScalingKind::kWeak : ScalingKind::kStrong,
                               .folder = arguments.out,
                               .launch = launch,
                               .command = arguments.program,
                               .cores = lockstep::launch::usable_cores()};
  std::signal(SIGPIPE, SIG_IGN);
  // One that comes between two runs ends the next one. One that comes after the last run costs no table.
  const sigset_t signals = lockstep::without_ignored({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
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
  std::fflush(stdout);    // before the errors
  std::clearerr(stdout);  // nobody need read the table
  const int exit_code = files.ok() ? EXIT_SUCCESS : fail(files.status());
  if (status.ok()) return exit_code;
  return end(Status(status.code(), fmt::format("{}; the table lacks these runs: {}", status.message(),
                                               lockstep::report::missing_runs(options, table))));
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  lockstep::options::Command app{.name = "lockstep", .help = "Pictures of training runs."};
  Arguments arguments;
  const auto& report =
      app.add("report", "Make report.html from the log of a run", [&] { return make_report(arguments); });
  report.key("FOLDER", arguments.folder, "Folder with run.jsonl, or with the table of lockstep scaling").word();
  report.key("out", arguments.file, "The page to write. Empty: report.html in that folder").letter("o");
  const auto& scaling = app.add(
      "scaling", "Run a program with several numbers of processes, and compare: scaling [options] -- PROGRAM ...",
      [&] { return measure_scaling(arguments); });
  scaling.key("procs", arguments.processes, "Numbers of processes, for example 1,2,4").between(1, 1 << 16);
  scaling.key("runs", arguments.runs, "Runs with each number, in turn").between(1, 1000);
  scaling.key("weak", arguments.weak, "Each process has a fixed amount of work");
  scaling.key("strong", arguments.strong, "All processes share a fixed amount of work. The default");
  scaling.key("out", arguments.out, "Folder for the table, the plot and the runs").letter("o");
  scaling.key("PROGRAM", arguments.program, "What is behind --, whatever it looks like").rest();
  return lockstep::options::run(app, {argv + 1, argv + argc});
}
