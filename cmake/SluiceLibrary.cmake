# libsluice.so, the C API (include/sluice/c.h), and what programs need to find it.
include(GNUInstallDirs)

# What of the command line reads options. Has objects of its own, so that libraries can take these alone.
set(option_readers arguments config_file foreign_options llama_options markdown options sizes suggest vllm_options)
list(TRANSFORM option_readers REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/cli/\\1.cc" OUTPUT_VARIABLE option_reader_files)
set_source_files_properties(${option_reader_files} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# sluice_binding_objects(OUT): the objects of a library for other languages. Of the command line it has what reads
# options; commands and their terminal stay in the program.
function(sluice_binding_objects out)
  sluice_objects(objects binding)
  list(JOIN option_readers "|" readers)
  list(APPEND objects "$<FILTER:$<TARGET_OBJECTS:cli>,INCLUDE,/cli/(${readers})[.]cc[.]o$>")
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# sluice_export_only(TARGET pattern...): a shared library shows these symbols and no others.
function(sluice_export_only target)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  list(JOIN ARGN "; " patterns)
  file(CONFIGURE OUTPUT ${map} CONTENT "{ global: ${patterns}; local: *; };\n")
  target_link_options(${target} PRIVATE -Wl,--version-script=${map})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${map})
endfunction()

# sluice_strip(TARGET): takes debug information and local symbols out of what people install.
function(sluice_strip target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT SLUICE_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--strip-all)
  endif()
endfunction()

sluice_binding_objects(objects)
add_library(libsluice SHARED ${objects})
target_link_libraries(libsluice PRIVATE binding)
target_include_directories(libsluice PUBLIC ${CMAKE_SOURCE_DIR}/include)
set_target_properties(libsluice PROPERTIES OUTPUT_NAME sluice VERSION ${PROJECT_VERSION} SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
sluice_export_only(libsluice "sluice_*")
sluice_strip(libsluice)

# Installed where it was built: `cmake --install` also serves those who built only the program.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/sluice.pc.in @ONLY CONTENT "prefix=PREFIX
Name: sluice
Description: runs large language models
Version: @PROJECT_VERSION@
Libs: -L\${prefix}/@CMAKE_INSTALL_LIBDIR@ -lsluice
Cflags: -I\${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
")
install(TARGETS libsluice LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
install(CODE "
  if(EXISTS \"$<TARGET_FILE:libsluice>\")
    file(READ \"${CMAKE_BINARY_DIR}/sluice.pc.in\" text)
    string(REPLACE PREFIX \"\${CMAKE_INSTALL_PREFIX}\" text \"\${text}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/sluice.pc\" \"\${text}\")
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig\" TYPE FILE
         FILES \"${CMAKE_BINARY_DIR}/sluice.pc\")
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/sluice\" TYPE FILE
         FILES \"${CMAKE_SOURCE_DIR}/include/sluice/c.h\")
  endif()")

add_executable(example_c ${CMAKE_SOURCE_DIR}/examples/c/stream.c)
target_link_libraries(example_c PRIVATE libsluice)

if(SLUICE_SANITIZE)
  # As with the program: no test with a sanitizer needs them, and they are much to compile.
  set_target_properties(binding libsluice example_c PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
