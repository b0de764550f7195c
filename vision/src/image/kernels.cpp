#include "image/kernels.h"

#include "base/instruction_set.h"

namespace lockstep::data {
namespace {

const ImageKernels& kernels_for(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512: return kAvx512ImageKernels;
    case InstructionSet::kAvx2: return kAvx2ImageKernels;
#endif
    default: return kPortableImageKernels;
  }
}

}  // namespace

int supported_image_kernels(const ImageKernels* list[3]) {
  int count = 0;
  for (const InstructionSet set : supported_instruction_sets()) list[count++] = &kernels_for(set);
  return count;
}

const ImageKernels& image_kernels() {
  static const ImageKernels& kernels = kernels_for(instruction_set());
  return kernels;
}

}  // namespace lockstep::data
