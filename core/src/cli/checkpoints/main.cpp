// The program behind `lockstep checkpoint`. `lockstep` executes it for this command, so the launcher does not load
// LibTorch, which the readers of checkpoints need.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "arguments/words.h"
#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "checkpoint/tools/tools.h"

namespace {

namespace checkpoint = lockstep::checkpoint;

// As of diff(1): 0 alike, 1 different, 2 an error.
constexpr int kDifferent = 1;
constexpr int kUsageError = 2;
constexpr int kBad = 1;

struct Arguments {
  std::vector<std::string> files;
  std::string first;
  std::string second;
  checkpoint::ShowOptions show;
  checkpoint::VerifyOptions verify;
  checkpoint::DiffOptions diff;
  std::string entry;
  checkpoint::ConvertOptions convert;
};

// All output goes through here: names from files are escaped.
void print_lines(const checkpoint::Lines& lines) {
  for (const std::string& line : lines) std::printf("%s\n", lockstep::printable(line).c_str());
}

int run_show(const Arguments& arguments) {
  print_lines(checkpoint::show(arguments.first, arguments.show));
  return EXIT_SUCCESS;
}

int run_verify(const Arguments& arguments) {
  bool good = true;
  for (const std::string& file : arguments.files) {
    const checkpoint::Verified verified = checkpoint::verify(file, arguments.verify);
    print_lines(verified.lines);
    good = good && verified.good;
  }
  return good ? EXIT_SUCCESS : kBad;
}

int run_diff(Arguments arguments) {
  if (arguments.diff.first_entry.empty()) arguments.diff.first_entry = arguments.entry;
  if (arguments.diff.second_entry.empty()) arguments.diff.second_entry = arguments.entry;
  const checkpoint::Differences found = checkpoint::diff(arguments.first, arguments.second, arguments.diff);
  print_lines(found.lines);
  std::printf("%zu values differ, %zu are the same\n", found.lines.size(), found.same);
  return found.lines.empty() ? EXIT_SUCCESS : kDifferent;
}

int run_convert(const Arguments& arguments) {
  if (const std::string why = checkpoint::wrong_options(arguments.second, arguments.convert); !why.empty()) {
    std::fprintf(stderr, "lockstep: %s\n", lockstep::printable(why).c_str());
    return kUsageError;
  }
  print_lines(checkpoint::convert(arguments.first, arguments.second, arguments.convert));
  return EXIT_SUCCESS;
}

void add_show(CLI::App& command, Arguments& arguments) {
  command.add_option("FILE", arguments.first, "A file or folder")->required();
  command.add_option("--entry", arguments.show.entry, "Show the value under this key of its dict alone");
  command.add_flag("--statistics", arguments.show.statistics,
                   "For each tensor the least, the greatest and the mean value, and how many are not finite");
  command.add_flag("--ignore-checksum", arguments.show.ignore_checksum,
                   "Read a safetensors file that another program has rewritten with the metadata of the former one");
}

void add_verify(CLI::App& command, Arguments& arguments) {
  command.add_option("FILES", arguments.files, "Files or folders")->required();
  command.add_flag("--finite", arguments.verify.finite, "Tensors with NaN or infinity are bad too");
}

void add_diff(CLI::App& command, Arguments& arguments) {
  command.add_option("FIRST", arguments.first, "A file or folder")->required();
  command.add_option("SECOND", arguments.second, "A file or folder, of the same format or another")->required();
  command.add_option("--entry", arguments.entry, "Compare the values under this key");
  command.add_option("--first-entry", arguments.diff.first_entry, "This key of the first. Default: --entry");
  command.add_option("--second-entry", arguments.diff.second_entry, "This key of the second. Default: --entry");
  command.add_option("--rtol", arguments.diff.rtol, "Allowed difference relative to the second. Default 0")
      ->check(CLI::Range(0.0, 1e9));
  command.add_option("--atol", arguments.diff.atol, "Allowed difference. Default 0")->check(CLI::Range(0.0, 1e9));
  command.add_flag("--ignore-dtypes", arguments.diff.ignore_dtypes, "Compare values of different dtypes");
}

void add_convert(CLI::App& command, Arguments& arguments) {
  command.add_option("FROM", arguments.first, "A file or folder")->required();
  command
      .add_option("TO", arguments.second,
                  "The file to write: .safetensors, .ckpt (a checkpoint of Lockstep), else one of torch.save")
      ->required();
  command.add_option("--entry", arguments.convert.entry, "Convert the value under this key, such as model");
  command.add_option("--dtype", arguments.convert.dtype, "Convert tensors of floating point: float16, bfloat16, ...");
  command.add_option("--strip-prefix", arguments.convert.strip_prefix,
                     "Take this off the names, such as module., and leave out names without it");
  command.add_option("--add-prefix", arguments.convert.add_prefix, "Put this in front of the names");
  command.add_option("--optimizer", arguments.convert.optimizer,
                     "The kind of the optimizer for a .ckpt, where its options do not tell: Adam, AdamW");
  command.add_flag("--ignore-checksum", arguments.convert.ignore_checksum,
                   "Read a safetensors file that another program has rewritten with the metadata of the former one");
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  CLI::App app("Files of models and training runs.", "lockstep");
  app.require_subcommand(1);
  CLI::App* group = app.add_subcommand(
      "checkpoint", "Files of torch.save, safetensors, distributed checkpoints of Python, checkpoints of Lockstep");
  group->require_subcommand(1);
  Arguments arguments;
  CLI::App* show = group->add_subcommand("show", "Print what a file holds");
  add_show(*show, arguments);
  CLI::App* verify = group->add_subcommand("verify", "Read files completely and compare their checksums");
  add_verify(*verify, arguments);
  CLI::App* diff = group->add_subcommand("diff", "Compare the values of two files");
  add_diff(*diff, arguments);
  CLI::App* convert = group->add_subcommand("convert", "Write a file in another format");
  add_convert(*convert, arguments);
  try {
    lockstep::cli::parse_words(app, {argv + 1, argv + argc});
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  try {
    if (show->parsed()) return run_show(arguments);
    if (verify->parsed()) return run_verify(arguments);
    return diff->parsed() ? run_diff(arguments) : run_convert(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", lockstep::printable(error.what()).c_str());
    return diff->parsed() ? kUsageError : EXIT_FAILURE;
  }
}
