// load_cuda() on machines that are only folders, and on this one.
#include "lockstep/c10d/cuda.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "c10d/cuda_library.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool cuda_library_is_loaded() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

class Cuda : public testing::Test {
 protected:
  CudaSurroundings machine() const { return {.root = root_.path(), .torch_lib = root_.path() / "torch/lib"}; }
  void add_driver() const { root_.write("dev/nvidiactl", ""); }

  ScratchFolder root_;
};

TEST_F(Cuda, ADriverIsSeenByItsFiles) {
  EXPECT_TRUE(has(why_no_gpu(machine()), "no NVIDIA driver")) << why_no_gpu(machine());
  // Of a driver without a GPU.
  std::filesystem::create_directories(root_.path() / "proc/driver/nvidia/gpus");
  EXPECT_TRUE(has(why_no_gpu(machine()), "no NVIDIA driver"));
  for (const char* sign : {"proc/driver/nvidia/gpus/0000:01:00.0/information", "dev/nvidiactl", "dev/dxg"}) {
    const ScratchFolder other;
    other.write(sign, "");
    EXPECT_EQ(why_no_gpu({.root = other.path()}), "") << sign;
  }
}

TEST_F(Cuda, TheVariableCanHideAllGpus) {
  add_driver();
  CudaSurroundings surroundings = machine();
  for (const char* value : {"0", "3,1", " 2", "0,-1", "GPU-8932f937", "MIG-GPU-8932f937/1/0"}) {
    surroundings.visible_devices = value;
    EXPECT_EQ(why_no_gpu(surroundings), "") << value;
  }
  for (const char* value : {"", " ", "-1", "-1,0", "NoDevFiles"}) {
    surroundings.visible_devices = value;
    EXPECT_TRUE(has(why_no_gpu(surroundings), "CUDA_VISIBLE_DEVICES is '" + std::string(value) + "'")) << value;
  }
}

TEST_F(Cuda, SaysWhyTheLibraryIsNotLoaded) {
  // A broken library: it would be noticed if it were touched.
  root_.write("torch/lib/libtorch_cuda.so", "no library");
  CudaSupport support = load_cuda_in(machine());
  EXPECT_FALSE(support.gpu_visible || support.loaded);
  EXPECT_TRUE(has(support.reason, "no NVIDIA driver")) << support.reason;

  add_driver();
  support = load_cuda_in(machine());
  EXPECT_TRUE(support.gpu_visible);
  EXPECT_FALSE(support.loaded);
  for (const std::string& part : {std::string("cannot be loaded"), root_.path("torch/lib/libtorch_cuda.so")})
    EXPECT_TRUE(has(support.reason, part)) << support.reason;

  std::filesystem::remove(root_.path("torch/lib/libtorch_cuda.so"));
  support = load_cuda_in(machine());
  EXPECT_TRUE(support.gpu_visible);
  EXPECT_FALSE(support.loaded);
  for (const std::string& part : {std::string("without CUDA"), root_.path("torch/lib"), std::string("libtorch_cpu.so")})
    EXPECT_TRUE(has(support.reason, part)) << support.reason;
}

TEST_F(Cuda, NothingIsLoadedWhereNoGpuIsVisible) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const CudaSupport support = load_cuda();
  EXPECT_FALSE(support.gpu_visible || support.loaded);
  EXPECT_TRUE(has(support.reason, "CUDA_VISIBLE_DEVICES")) << support.reason;
  EXPECT_FALSE(cuda_library_is_loaded());
}

#ifdef LOCKSTEP_HAS_NCCL
// LibTorch's own library loads without a driver too. LibTorch then has the parts of CUDA that it asks for.
TEST_F(Cuda, LibTorchHasCudaAfterwards) {
  CudaSurroundings surroundings = CudaSurroundings::of_process();
  ASSERT_TRUE(surroundings.torch_lib);
  EXPECT_TRUE(std::filesystem::exists(*surroundings.torch_lib / "libtorch_cpu.so")) << *surroundings.torch_lib;
  add_driver();
  surroundings.root = root_.path();
  surroundings.visible_devices.reset();
  const CudaSupport support = load_cuda_in(surroundings);
  EXPECT_TRUE(support.loaded) << support.reason;
  EXPECT_EQ(support.reason, "");
  EXPECT_TRUE(cuda_library_is_loaded());
  EXPECT_TRUE(at::detail::getCUDAHooks().compiledWithCuDNN());
  EXPECT_TRUE(load_cuda_in(surroundings).loaded);
}
#endif

}  // namespace
}  // namespace lockstep::test
