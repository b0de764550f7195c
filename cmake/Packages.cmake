# `./dev package`, or `cpack` in the build folder: Debian packages and a tarball.
#
# lockstep       the programs. LibTorch is no Debian package: `train` and `checkpoint`, which alone need it, find the wheel
#                that LOCKSTEP_TORCH_DIR names when they start. The other commands run without it.
# lockstep-dev   headers, libraries, backends and the CMake package, for the LibTorch that the version names.
# The tarball has both, and can be unpacked anywhere.
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

set(CPACK_COMPONENTS_ALL programs development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_VERSION ${built_for})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_PROGRAMS_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
# Loaded at run time, where there is something for them to do.
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS "libhwloc15, libucx0, fonts-dejavu-core")
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION "The launcher and the other programs. `lockstep train` and `lockstep checkpoint` need
the PyPI wheel torch: name its folder in LOCKSTEP_TORCH_DIR.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME lockstep-dev)
set(CPACK_DEBIAN_DEVELOPMENT_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# What lockstepConfig.cmake looks for.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "lockstep (= ${built_for}), cmake (>= 3.25), libfmt-dev, libjpeg-dev, libpng-dev, \
libspdlog-dev, libssl-dev, libtiff-dev, libwebp-dev, libyaml-cpp-dev, nlohmann-json3-dev, pkg-config, zlib1g-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, libraries and the CMake package. Programs need the release of LibTorch that
this package's version names, from the PyPI wheel torch.")
if(LOCKSTEP_HAS_MPI)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS libopenmpi-dev)
endif()
include(CPack)
