// The program behind `lockstep train`. `lockstep` executes it, so the launcher does not load LibTorch.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "base/standard_descriptors.h"
#include "lockstep/config/command_line.h"
#include "trainer/command/command.h"

namespace {

constexpr int kUsageError = 2;

void print_error(std::string_view text) {
  std::fprintf(stderr, "lockstep: %s\n", std::string(text).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size fails with a reason, as on a full disk
  ::signal(SIGPIPE, SIG_IGN);  // a reader of the progress that has left (`| head`) ends no training
  if (argc > 1 && std::string_view(argv[1]) == "train") {
    --argc;
    ++argv;
  }
  lockstep::trainer_detail::TrainCommandOptions options;
  lockstep::config::Schema schema;
  lockstep::trainer_detail::declare(options, schema);
  const lockstep::Result<bool> configured = lockstep::config::configure(schema, argc, argv);
  if (!configured.ok()) {
    print_error(configured.status().message());
    return kUsageError;
  }
  if (!configured.value()) return EXIT_SUCCESS;
  if (const lockstep::Status wrong = lockstep::trainer_detail::check(options, schema); !wrong.ok()) {
    print_error(wrong.message());
    return kUsageError;
  }
  try {
    return lockstep::trainer_detail::run_train_command(options);
  } catch (const std::exception& error) {
    print_error(error.what());
    return EXIT_FAILURE;
  }
}
