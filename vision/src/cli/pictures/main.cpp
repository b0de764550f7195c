// The program behind `lockstep pack` and `lockstep data`. `lockstep` executes it for these commands, so the launcher
// does not load the image libraries.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "arguments/words.h"
#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "cli/pictures/commands.h"

namespace {

constexpr int kUsageError = 2;

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  using namespace lockstep::cli;  // NOLINT(google-build-using-namespace)
  CLI::App app("Pictures for training: packs, previews, checks.", "lockstep");
  app.require_subcommand(1);
  PackArguments pack;
  PreviewArguments preview;
  CheckArguments check;
  CLI::App* pack_command = app.add_subcommand("pack", "Put a folder of class folders into one file, for PackedImages");
  add_pack_options(*pack_command, pack);
  CLI::App* data = app.add_subcommand("data", "Look at a folder of class folders");
  data->require_subcommand(1);
  CLI::App* preview_command = data->add_subcommand("preview", "Write a page of augmented samples (HTML)");
  add_preview_options(*preview_command, preview);
  CLI::App* check_command = data->add_subcommand("check", "Find corrupt, tiny and duplicate pictures");
  add_check_options(*check_command, check);
  try {
    parse_words(app, {argv + 1, argv + argc});
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kUsageError;
  }
  try {
    if (pack_command->parsed()) return run_pack(pack);
    return preview_command->parsed() ? run_preview(preview) : run_check(check);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", lockstep::printable(error.what()).c_str());
    return EXIT_FAILURE;
  }
}
