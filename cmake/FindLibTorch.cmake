# LibTorch from the PyPI wheel `torch`, without the CUDA toolkit that the wheel's own CMake package requires.
#
# Input:  LOCKSTEP_TORCH_DIR  the wheel's folder, .../site-packages/torch (default: that of `python3`)
# Output: LibTorch::LibTorch  headers, libtorch_cpu and libc10; LibTorch_VERSION
#         LibTorch::CUDA      libtorch_cuda and libc10_cuda, linked even if none of their symbols is used (in CUDA wheels)
#         LibTorch_PYTHON     the interpreter of the environment that holds the wheel, for parity tests
if(NOT LOCKSTEP_TORCH_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    # pip's isolated builds hide installed packages from imports, but they are still in platlib.
    execute_process(COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u, sysconfig as c; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else c.get_path('platlib') + '/torch')"
      OUTPUT_VARIABLE LOCKSTEP_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(LOCKSTEP_TORCH_DIR "${LOCKSTEP_TORCH_DIR}" CACHE PATH "Folder of the torch wheel (site-packages/torch)" FORCE)
endif()

find_path(LibTorch_INCLUDE_DIR torch/headeronly/version.h PATHS ${LOCKSTEP_TORCH_DIR}/include NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${LOCKSTEP_TORCH_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS ${LOCKSTEP_TORCH_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS ${LOCKSTEP_TORCH_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${LOCKSTEP_TORCH_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
if(LibTorch_INCLUDE_DIR)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_[MP][A-Z]+ ")
  string(REGEX MATCHALL "[0-9]+" version_numbers "${version_lines}")
  list(JOIN version_numbers . LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "Set LOCKSTEP_TORCH_DIR to the folder of the torch wheel (site-packages/torch in an environment that has it).")

# .../lib/python3.x/site-packages/torch
find_program(LibTorch_PYTHON python3 PATHS ${LOCKSTEP_TORCH_DIR}/../../../../bin NO_DEFAULT_PATH NO_CACHE)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED"
    # The wheel's libraries find their dependencies by RPATH at run time. The linker does not need them.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined;-Wl,-rpath,${LOCKSTEP_TORCH_DIR}/lib"
    INTERFACE_LINK_LIBRARIES "${LibTorch_CPU_LIBRARY};${LibTorch_C10_LIBRARY}")
endif()

if(LibTorch_FOUND AND LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND NOT TARGET LibTorch::CUDA)
  add_library(LibTorch::CUDA INTERFACE IMPORTED)
  set_target_properties(LibTorch::CUDA PROPERTIES INTERFACE_LINK_LIBRARIES LibTorch::LibTorch INTERFACE_LINK_OPTIONS
    "-Wl,--push-state,--no-as-needed,${LibTorch_CUDA_LIBRARY},${LibTorch_C10_CUDA_LIBRARY},--pop-state")
endif()
