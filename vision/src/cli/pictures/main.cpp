// The program behind `lockstep pack` and `lockstep data`. `lockstep` executes it for these commands, so the launcher
// does not load the image libraries.
#include "base/standard_descriptors.h"
#include "cli/pictures/commands.h"

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  using namespace lockstep::cli;  // NOLINT(google-build-using-namespace)
  lockstep::options::Command app{.name = "lockstep", .help = "Pictures for training: packs, previews, checks."};
  PackArguments pack;
  PreviewArguments preview;
  CheckArguments check;
  add_pack(app, pack);
  lockstep::options::Command& data = app.add("data", "Look at a folder of class folders");
  add_preview(data, preview);
  add_check(data, check);
  return lockstep::options::run(app, {argv + 1, argv + argc});
}
