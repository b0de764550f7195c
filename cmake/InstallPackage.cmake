# `cmake --install`: headers, one static library per layer, and a CMake package. Another project then says
#   find_package(lockstep REQUIRED)
#   target_link_libraries(train PRIVATE lockstep::lockstep)
# lockstep::lockstep means all layers; each also has its own target (lockstep::engine works without LibTorch). Backends
# are components: find_package(lockstep COMPONENTS mpi) fails if this build has no MPI. A program does not link
# lockstep::mpi, because it is loaded when the program asks for it. A program that uses GPUs calls load_cuda(), or links
# lockstep::nccl.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
add_library(lockstep_all INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_all)
set_target_properties(lockstep_all PROPERTIES EXPORT_NAME lockstep)
target_link_libraries(lockstep_all INTERFACE ${layers})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
get_property(backends GLOBAL PROPERTY LOCKSTEP_BACKENDS)
install(TARGETS lockstep_all ${layers} ${backends} EXPORT lockstepTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir} COMPONENT development)
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h")
configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  cmake/FindLibTorch.cmake DESTINATION ${package_dir} COMPONENT development)
# All that `cmake --install` and the packages take.
add_custom_target(lockstep_installed DEPENDS ${layers} ${backends} lockstep_programs lockstep_completions)
