# Run by ctest; see CMakeLists.txt. The scratch folder goes away afterwards, also when a step fails.
function(step name)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    file(REMOVE_RECURSE ${SCRATCH})
    message(FATAL_ERROR "${name} failed (${result}):\n${output}")
  endif()
  message(STATUS "${name}: done")
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
step("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${SCRATCH}/prefix)
step("configure" ${CMAKE_COMMAND} -G Ninja -S ${CONSUMER} -B ${SCRATCH}/build -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DCONSUMER_TORCH=${TORCH})
step("build" ${CMAKE_COMMAND} --build ${SCRATCH}/build)
step("run" ${SCRATCH}/build/consumer)
step("installed launcher" ${SCRATCH}/prefix/bin/lockstep --help)
file(REMOVE_RECURSE ${SCRATCH})
