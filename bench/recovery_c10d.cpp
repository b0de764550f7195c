// All-reduces until one fails, with LibTorch: recovery_c10d FOLDER. The error ends the program. With "in-place" before
// the folder, the survivors form the world anew and go on. With "notice" they report when the error has come.
#include <lockstep/c10d/distributed.h>

#include <chrono>
#include <exception>
#include <string>

#include "recovery_program.h"

namespace {

namespace bench = lockstep::bench;

// Until a rank is lost.
void add_up(const char* program, const std::string& folder, int number) {
  for (bool first = true;; first = false) {
    at::Tensor value = at::ones({1});
    lockstep::all_reduce(value);
    if (value.item<float>() != float(lockstep::get_world_size())) bench::die(program, "wrong sum");
    if (first) bench::report_start(folder, number, lockstep::get_world_size());
    bench::pause_between_steps();
  }
}

void go_on_in_place(const char* program, const std::string& folder) {
  lockstep::init_process_group("lockstep", {.enable_reconfigure = true});
  const int number = lockstep::get_rank();
  for (;;) {
    try {
      add_up(program, folder, number);
    } catch (const std::exception& error) {
      const lockstep::ErrorCode code = lockstep::error_code(error);
      if (code != lockstep::ErrorCode::kPeerFailed && code != lockstep::ErrorCode::kAborted) throw;
      lockstep::reconfigure();
    }
  }
}

// The timeout is that of peers/notice.py, so that the peer and this program report under the same limit.
void report_the_error(const char* program, const std::string& folder) {
  const lockstep::ProcessGroupGuard group("lockstep", {.timeout = std::chrono::seconds(10)});
  try {
    add_up(program, folder, group.rank());
  } catch (const lockstep::BackendError&) {
    bench::report_start(folder, group.rank(), group.world_size());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 3 && std::string(argv[1]) == "in-place") go_on_in_place(argv[0], argv[2]);
  if (argc == 3 && std::string(argv[1]) == "notice") {
    report_the_error(argv[0], argv[2]);
    return 0;
  }
  if (argc != 2) bench::die(argv[0], "expected the name of a folder for reports");
  const lockstep::ProcessGroupGuard group("lockstep");
  add_up(argv[0], argv[1], group.rank());
} catch (const std::exception& error) {
  lockstep::bench::die(argv[0], error.what());
}
