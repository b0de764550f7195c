#include "openmp_threads.h"

#include <dlfcn.h>

namespace lockstep::nn_detail {

void end_openmp_threads() {
  // OpenMP 5.0: omp_pause_resource(omp_pause_soft, omp_get_initial_device()). The numbers of devices before 6.0: the
  // host comes after all others, and initial_device is -1 in libgomp and in libomp. LibTorch brings its own library
  // under a name that differs from release to release, so it is found by the symbol.
  using Pause = int (*)(int kind, int device);
  using InitialDevice = int (*)();
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource"));
  static const auto initial_device = reinterpret_cast<InitialDevice>(dlsym(RTLD_DEFAULT, "omp_get_initial_device"));
  constexpr int kSoft = 1;
  if (pause != nullptr && initial_device != nullptr) pause(kSoft, initial_device());
}

}  // namespace lockstep::nn_detail
