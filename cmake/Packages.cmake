# `./dev package`, or `cpack` in the build folder: Debian packages and a tarball.
#
# For each component: lockstep-NAME with its programs, and lockstep-NAME-dev with headers, libraries and the CMake package, for the
# LibTorch that the version names. LibTorch is no Debian package: `train` and `checkpoint`, which alone need it, find the wheel that
# LOCKSTEP_TORCH_DIR names when they start. The tarball has everything, and can be unpacked anywhere.
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "The Lockstep maintainers")
set(CPACK_PACKAGE_CONTACT "The Lockstep maintainers <maintainers@users.noreply.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed data-parallel training for LibTorch")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/StripArchives.cmake)
set(CPACK_THREADS 0)

set(built_for ${PROJECT_VERSION})
if(LOCKSTEP_TORCH)
  string(APPEND built_for "+torch${LibTorch_VERSION}")
endif()
set(CPACK_PACKAGE_FILE_NAME "lockstep-${built_for}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_VERSION ${built_for})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_CORE_DESCRIPTION "The launcher, and `lockstep checkpoint`, which needs the PyPI wheel torch:
name its folder in LOCKSTEP_TORCH_DIR.")
set(CPACK_COMPONENT_VISION_DESCRIPTION "Packs, previews and checks of folders of pictures.")
set(CPACK_COMPONENT_STUDIO_DESCRIPTION "Configuration files, training without code, reports of runs, what is wrong with a
machine. `lockstep train` needs the PyPI wheel torch: name its folder in LOCKSTEP_TORCH_DIR.")
# Loaded at run time, where there is something for them to do.
set(CPACK_DEBIAN_CORE_PACKAGE_RECOMMENDS "libhwloc15, libucx0")
if(LOCKSTEP_HAS_MPI)
  set(CPACK_DEBIAN_CORE-DEV_PACKAGE_RECOMMENDS libopenmpi-dev)
endif()
# What lockstepConfig.cmake looks for.
set(core_headers "cmake (>= 3.25), libfmt-dev, libspdlog-dev, libssl-dev, nlohmann-json3-dev, zlib1g-dev")
set(vision_headers "libjpeg-dev, libpng-dev, libtiff-dev, libwebp-dev, pkg-config")
set(studio_headers libyaml-cpp-dev)
set(CPACK_COMPONENTS_ALL)
set(lower)
set(lower_dev)
foreach(component ${LOCKSTEP_COMPONENTS})
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component} ${component}-dev)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME lockstep-${component})
  set(CPACK_DEBIAN_${upper}_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${lower}")
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_NAME lockstep-${component}-dev)
  set(CPACK_DEBIAN_${upper}-DEV_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_${upper}-DEV_PACKAGE_DEPENDS "${lower_dev}lockstep-${component} (= ${built_for}), ${${component}_headers}")
  set(CPACK_COMPONENT_${upper}-DEV_DESCRIPTION "Headers, libraries and the CMake package of the component ${component}. Programs
need the release of LibTorch that this package's version names, from the PyPI wheel torch.")
  set(lower "lockstep-${component} (= ${built_for})")
  set(lower_dev "lockstep-${component}-dev (= ${built_for}), ")
endforeach()
include(CPack)
