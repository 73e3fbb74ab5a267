# Writes build_facts.inc: the commit, the kind of build, and CUDA's version. Runs at every build, because CMake does not
# see commits; the file changes only when its text does.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "${COMMIT}")
  if(NOT commit)
    execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND git status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(commit AND changes)
      string(APPEND commit " with changes")
    endif()
  endif()
  if(NOT commit)
    set(commit "unknown")
  endif()
  file(CONFIGURE OUTPUT ${OUT} CONTENT "#define SLUICE_BUILD_COMMIT \"${commit}\"
#define SLUICE_BUILD_TYPE \"${TYPE}\"
#define SLUICE_BUILD_CUDA \"${CUDA}\"
")
  return()
endif()

function(sluice_build_facts target)
  set(cuda "not built in")
  if(SLUICE_CUDA)
    set(cuda "${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  set(out ${CMAKE_BINARY_DIR}/build_facts/build_facts.inc)
  add_custom_target(build_facts BYPRODUCTS ${out}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${out} "-DCOMMIT=${SLUICE_COMMIT}"
            "-DTYPE=${CMAKE_BUILD_TYPE}" "-DCUDA=${cuda}" -P ${CMAKE_SOURCE_DIR}/cmake/SluiceBuildFacts.cmake
    VERBATIM)
  add_dependencies(${target} build_facts)
  # The only file that a commit changes every time.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/${target}/build_facts.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/build_facts)
endfunction()
