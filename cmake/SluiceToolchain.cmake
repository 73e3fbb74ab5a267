# Compiler settings every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Asserts of libraries are off in Release; Sluice's own CHECK stays on in every build.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g -D_GLIBCXX_ASSERTIONS")

# Several files are compiled as one: headers are most of the time that a file takes. Names in unnamed namespaces must
# therefore differ between the files of a folder.
option(SLUICE_UNITY "compile several source files as one" ON)
set(CMAKE_UNITY_BUILD ${SLUICE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "source files that are compiled as one")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-psabi;-fno-math-errno;-fno-trapping-math;-ffp-contract=off>")
add_link_options(-static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--build-id=sha1)
find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()
# The same objects go into programs and into shared libraries. Hidden symbols need no table of a shared library.
if(NOT SLUICE_SANITIZE)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endif()
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # AddressSanitizer finds what these three would, and they are a quarter of the time to compile.
  if(SLUICE_SANITIZE MATCHES "address")
    add_compile_options(-fno-sanitize=null,vptr,object-size)
  endif()
  add_compile_options(-g1)  # lines for reports; all of -g takes half as long again to compile
  # What GCC instruments it no longer follows: it takes variables for uninitialized that are not (its manual says so).
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
endif()
