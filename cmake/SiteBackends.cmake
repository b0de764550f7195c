# The backends that use a site's libraries: its MPI, LibTorch's NCCL. Each is a separate shared library that is loaded
# when a program asks for it. Other programs link and start without them.
#
# Input:  LOCKSTEP_MPI, LOCKSTEP_NCCL  AUTO (built if its dependencies are found), ON (an error if not) or OFF
# Output: LOCKSTEP_HAS_MPI, LOCKSTEP_HAS_NCCL; MPI::MPI_C; LockstepCuda::Headers
set(LOCKSTEP_MPI AUTO CACHE STRING "Build backend mpi: AUTO, ON or OFF")
set(LOCKSTEP_NCCL AUTO CACHE STRING "Build backend nccl: AUTO, ON or OFF")
set_property(CACHE LOCKSTEP_MPI LOCKSTEP_NCCL PROPERTY STRINGS AUTO ON OFF)
set(LOCKSTEP_HAS_MPI FALSE)
set(LOCKSTEP_HAS_NCCL FALSE)
if(NOT LOCKSTEP_TORCH)
  return()
endif()

if(LOCKSTEP_MPI)
  set(MPI_CXX_SKIP_MPICXX TRUE)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(LOCKSTEP_HAS_MPI TRUE)
  elseif(LOCKSTEP_MPI STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_MPI=ON, but no MPI was found (Debian: libopenmpi-dev, openmpi-bin)")
  endif()
endif()

# Headers of CUDA and NCCL come from the packages that the torch wheel depends on, because their releases match the
# wheel; else from the toolkit.
if(LOCKSTEP_NCCL)
  file(GLOB wheel_includes ${LOCKSTEP_TORCH_DIR}/../nvidia/*/include)
  foreach(header cuda_runtime_api cusparse nccl)
    find_path(LOCKSTEP_${header}_INCLUDE ${header}.h PATHS ${wheel_includes} NO_DEFAULT_PATH NO_CACHE)
    find_path(LOCKSTEP_${header}_INCLUDE ${header}.h PATHS /usr/local/cuda/include NO_CACHE)
    list(APPEND cuda_includes ${LOCKSTEP_${header}_INCLUDE})
  endforeach()
  if(TARGET LibTorch::CUDA AND NOT cuda_includes MATCHES "NOTFOUND")
    set(LOCKSTEP_HAS_NCCL TRUE)
    add_library(LockstepCuda::Headers INTERFACE IMPORTED)
    target_include_directories(LockstepCuda::Headers SYSTEM INTERFACE ${cuda_includes})
  elseif(LOCKSTEP_NCCL STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_NCCL=ON, but there is no LibTorch with CUDA (libtorch_cuda.so in "
      "${LOCKSTEP_TORCH_DIR}/lib), or no header of it: cuda_runtime_api.h, cusparse.h, nccl.h")
  endif()
endif()
message(STATUS "Backends: lockstep, mpi: ${LOCKSTEP_HAS_MPI}, nccl: ${LOCKSTEP_HAS_NCCL}")

# lockstep_backend(NAME LINK library...): liblockstep_NAME.so, which exports only its entry function.
function(lockstep_backend name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${LOCKSTEP_COMPONENT_DIR}/src/${name}/*.cpp)
  add_library(lockstep_${name} SHARED ${sources})
  add_library(lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${LOCKSTEP_BACKEND_DIR})
  lockstep_private_includes(lockstep_${name})
  target_link_libraries(lockstep_${name} PRIVATE lockstep::c10d ${ARG_LINK} fmt::fmt)
  target_compile_definitions(lockstep_${name} PRIVATE LOCKSTEP_BUILD="${LOCKSTEP_BUILD}")
  target_link_options(lockstep_${name} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/backend.map)
  set_target_properties(lockstep_${name} PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/backend.map)
  lockstep_use_torch(lockstep_${name} PRIVATE)
  lockstep_compile_options(lockstep_${name})
  lockstep_unity(lockstep_${name})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_BACKENDS lockstep_${name})
endfunction()
