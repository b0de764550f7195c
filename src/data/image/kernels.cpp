#include "data/image/kernels.h"

#include <optional>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::data {
namespace {

const ImageKernels& choose() {
  const ImageKernels* list[3];
  const int count = supported_image_kernels(list);
  const std::optional<std::string> requested = Environment::of_process().get("LOCKSTEP_ISA");
  for (int i = 0; i < count; ++i) {
    if (requested && *requested == list[i]->name) return *list[i];
  }
  return *list[count - 1];
}

}  // namespace

int supported_image_kernels(const ImageKernels* list[3]) {
  int count = 0;
  list[count++] = &kPortableImageKernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    list[count++] = &kAvx2ImageKernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      list[count++] = &kAvx512ImageKernels;
    }
  }
#endif
  return count;
}

const ImageKernels& image_kernels() {
  static const ImageKernels& kernels = choose();
  return kernels;
}

}  // namespace lockstep::data
