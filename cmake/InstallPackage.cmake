# `cmake --install`: for each component its headers, one static library per layer, and its part of the CMake package. Another
# project then says
#   find_package(lockstep REQUIRED COMPONENTS core)
#   target_link_libraries(train PRIVATE lockstep::core)
# lockstep::core, lockstep::vision and lockstep::studio mean all layers of a component and of those below it, lockstep::lockstep
# all that are installed; each layer also has its own target (lockstep::engine works without LibTorch). Backends are components
# of find_package too: find_package(lockstep COMPONENTS mpi) fails if this build has no MPI. A program does not link
# lockstep::mpi, because it is loaded when the program asks for it. A program that uses GPUs calls load_cuda(), or links
# lockstep::nccl.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
get_property(backends GLOBAL PROPERTY LOCKSTEP_BACKENDS)
add_library(lockstep_all INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_all)
# All that `cmake --install` and the packages take.
add_custom_target(lockstep_installed DEPENDS ${backends} lockstep_programs)
set(lower)
foreach(component ${LOCKSTEP_COMPONENTS})
  get_property(layers GLOBAL PROPERTY LOCKSTEP_${component}_LAYERS)
  add_library(lockstep_${component} INTERFACE)
  add_library(lockstep::${component} ALIAS lockstep_${component})
  set_target_properties(lockstep_${component} PROPERTIES EXPORT_NAME ${component})
  target_link_libraries(lockstep_${component} INTERFACE ${layers} ${lower})
  target_link_libraries(lockstep_all INTERFACE lockstep_${component})
  set(lower lockstep_${component})
  add_dependencies(lockstep_installed ${layers})
  set(targets lockstep_${component} ${layers})
  if(component STREQUAL core)
    list(APPEND targets ${backends})
  endif()
  install(TARGETS ${targets} EXPORT lockstep-${component}-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}-dev
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}-dev)
  install(EXPORT lockstep-${component}-targets NAMESPACE lockstep:: DESTINATION ${package_dir} COMPONENT ${component}-dev)
  install(DIRECTORY ${component}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component}-dev
    FILES_MATCHING PATTERN "*.h")
  # The components of one installation must be of one build.
  set(built_with none)
  if(LOCKSTEP_TORCH)
    set(built_with ${LibTorch_VERSION})
  endif()
  set(version ${CMAKE_BINARY_DIR}/lockstep-${component}-version.cmake)
  file(CONFIGURE OUTPUT ${version} CONTENT "set(lockstep_${component}_VERSION \"${PROJECT_VERSION} for LibTorch ${built_with}\")\n")
  install(FILES ${version} DESTINATION ${package_dir} COMPONENT ${component}-dev)
endforeach()
configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  cmake/FindLibTorch.cmake DESTINATION ${package_dir} COMPONENT core-dev)
