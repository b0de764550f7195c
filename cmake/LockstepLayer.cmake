# lockstep_component(NAME): what follows in this folder is of this component. A component has
#   include/lockstep/LAYER  the public headers of its layers, which are installed
#   internal/LAYER          headers for the other layers of this component and of the components above it
#   src/LAYER               everything else, for the layer alone
#   tests/LAYER             tests
macro(lockstep_component name)
  set(LOCKSTEP_COMPONENT ${name})
  set(LOCKSTEP_COMPONENT_DIR ${PROJECT_SOURCE_DIR}/${name})
endmacro()

# The private includes of a target of this component: its own sources, and what layers show one another.
function(lockstep_private_includes target)
  target_include_directories(${target} PRIVATE ${LOCKSTEP_COMPONENT_DIR}/src)
  foreach(component ${LOCKSTEP_COMPONENTS})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/${component}/internal)
    if(component STREQUAL LOCKSTEP_COMPONENT)
      break()
    endif()
  endforeach()
endfunction()

# lockstep_layer(NAME [SUBFOLDERS subfolder...] [HEADERS header...] [TORCH] [INTERNAL] [PUBLIC dep...] [PRIVATE dep...])
#
# INTERNAL: for this project's programs only, not in the installed package.
#
# One static library per layer: src/NAME/*.cpp and src/NAME/SUBFOLDER/*.cpp of the component. HEADERS: its public headers
# that are in the folders of other layers. A layer may include only headers of the layers that it names here, and of those that these
# name PUBLIC; of other layers, only public and internal headers: tools/check_layers.py, one of the tests, finds every
# other include. Layers without TORCH have no torch header on their include path.
function(lockstep_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wno-unused-parameter
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
    # clang 14 tells of its sanitizers by __has_feature alone. The sources ask for gcc's macros.
    string(REGEX MATCH "^[a-z]+" sanitizer "${LOCKSTEP_SANITIZE}")
    string(TOUPPER ${sanitizer} sanitizer)
    target_compile_definitions(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:__SANITIZE_${sanitizer}__>)
    # clang's check of virtual tables opens a pipe, and takes it for a wrong object when no descriptor is left.
    if(LOCKSTEP_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=vptr>)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# Parsing torch/torch.h takes about 15 s, so all targets that use it share one precompiled copy.
# lockstep_use_torch(TARGET [PRIVATE] [TESTS])
#
# TESTS: code of tests, which is compiled once for each time that it runs. Without optimisation that takes half as long.
function(lockstep_use_torch target)
  cmake_parse_arguments(ARG "PRIVATE;TESTS" "" "" ${ARGN})
  if(ARG_PRIVATE)
    target_link_libraries(${target} PRIVATE LibTorch::LibTorch)
  else()
    target_link_libraries(${target} PUBLIC LibTorch::LibTorch)
  endif()
  # The wheel's fmt headers come first on the path. They are newer than the system's fmt library, so do not link that.
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  if(ARG_TESTS)
    target_compile_options(${target} PRIVATE -O0 -g0)
    set(headers lockstep_tests_pch)
  else()
    set(headers lockstep_torch_pch)
  endif()
  if(TARGET ${headers} AND NOT target STREQUAL headers)
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

# lockstep_torch_headers(TARGET [TESTS]): the precompiled copy.
function(lockstep_torch_headers target)
  add_library(${target} STATIC ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
  target_precompile_headers(${target} PRIVATE <torch/torch.h>)
  lockstep_use_torch(${target} ${ARGN})
  target_link_libraries(${target} PUBLIC Threads::Threads)
  lockstep_compile_options(${target})
endfunction()

# Files that mostly spend their time in the same large headers: up to 16 of them are one compilation, or 32 of those that
# use LibTorch, whose header takes 8 s of each compilation even precompiled: it leaves templates to be instantiated. So
# the names in unnamed namespaces must differ within a layer; the build without LOCKSTEP_UNITY (./dev check) sees that
# each file includes what it uses. Tests that use LibTorch: up to 8, as a changed test is compiled with its neighbours.
# lockstep_unity(TARGET [TORCH | TESTS])
function(lockstep_unity target)
  cmake_parse_arguments(ARG "TORCH;TESTS" "" "" ${ARGN})
  set(most 16)
  if(ARG_TESTS)
    set(most 8)
  elseif(ARG_TORCH)
    set(most 32)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  math(EXPR units "(${count} + ${most} - 1) / ${most}")
  math(EXPR size "(${count} + ${units} - 1) / ${units}")  # of equal size, so that no core waits for a long one at the end
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

function(lockstep_layer name)
  cmake_parse_arguments(ARG "TORCH;INTERNAL" "" "SUBFOLDERS;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  set(subfolders ${ARG_SUBFOLDERS})
  list(TRANSFORM subfolders REPLACE "(.+)" "${LOCKSTEP_COMPONENT_DIR}/src/${name}/\\1/*.cpp")
  file(GLOB sources CONFIGURE_DEPENDS ${LOCKSTEP_COMPONENT_DIR}/src/${name}/*.cpp ${subfolders})
  if(NOT sources)
    message(FATAL_ERROR "layer ${name}: there is no source in ${LOCKSTEP_COMPONENT}/src/${name} or its subfolders")
  endif()
  add_library(lockstep_${name} STATIC ${sources})
  add_library(lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(lockstep_${name} PUBLIC
    $<BUILD_INTERFACE:${LOCKSTEP_COMPONENT_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  lockstep_private_includes(lockstep_${name})
  target_compile_features(lockstep_${name} PUBLIC cxx_std_20)
  lockstep_compile_options(lockstep_${name})
  # How the library knows its own lines among the places of calls (core/src/base/call_place.cpp), wherever the object was
  # compiled: ccache hands out objects of other checkouts, and writes paths relative to the build folder.
  file(RELATIVE_PATH source_from_build ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  target_compile_options(lockstep_${name} PRIVATE
    -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=lockstep/ -fmacro-prefix-map=${source_from_build}/=lockstep/)
  foreach(visibility PUBLIC PRIVATE)
    foreach(dependency ${ARG_${visibility}})
      target_link_libraries(lockstep_${name} ${visibility} ${dependency})
    endforeach()
  endforeach()
  if(ARG_TORCH)
    lockstep_use_torch(lockstep_${name})
    lockstep_unity(lockstep_${name} TORCH)
  else()
    lockstep_unity(lockstep_${name})
  endif()
  if(NOT ARG_INTERNAL)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_${LOCKSTEP_COMPONENT}_LAYERS lockstep_${name})
  endif()
endfunction()

# Kernels for three instruction sets, one of which is chosen at run time: FILE_portable.cpp, FILE_avx2.cpp,
# FILE_avx512.cpp, with further OPTIONS for all and AVX2 for the second. No contraction of a * b + c into fma, so that all
# of them give the same bits; gcc unrolls the loops over few buffers from -O3 on (20 % at 3 and 4 buffers).
function(lockstep_kernels file)
  cmake_parse_arguments(ARG "" "" "OPTIONS;AVX2" ${ARGN})
  set(options -ffp-contract=off ${ARG_OPTIONS} $<$<NOT:$<CONFIG:Debug>>:-O3>)
  # A precompiled header would bring functions that the linker could keep for the whole program.
  set_source_files_properties(src/${file}_portable.cpp src/${file}_avx2.cpp src/${file}_avx512.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  set_source_files_properties(src/${file}_portable.cpp PROPERTIES COMPILE_OPTIONS "${options}")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set_source_files_properties(src/${file}_avx2.cpp PROPERTIES COMPILE_OPTIONS "${options};-mavx2;${ARG_AVX2}")
    set_source_files_properties(src/${file}_avx512.cpp PROPERTIES COMPILE_OPTIONS
      "${options};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
  endif()
endfunction()

# lockstep_program(TARGET NAME SOURCES source... LINK library...): a program of this component that is installed as NAME.
function(lockstep_program target name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name})
  lockstep_compile_options(${target})
  lockstep_private_includes(${target})
  target_link_libraries(${target} PRIVATE ${ARG_LINK})
  # All programs: `lockstep` becomes the others for some of its commands.
  add_dependencies(lockstep_programs ${target})
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${LOCKSTEP_COMPONENT})
endfunction()
