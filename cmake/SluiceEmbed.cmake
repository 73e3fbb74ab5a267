# Puts files into the program: an assembler file that includes them, and a table of their names.
#
# sluice_embed(TARGET SET name=path...) makes SET.h for the target's code. It has the table sluice::embedded::SET, an
# array of EmbeddedFile (src/base/embedded_file.h).
function(sluice_embed target set)
  set(assembly "    .section .rodata\n")
  set(symbols "")
  set(table "")
  set(paths "")
  set(index 0)
  foreach(entry ${ARGN})
    string(REGEX MATCH "^([^=]+)=(.+)$" matched ${entry})
    set(name ${CMAKE_MATCH_1})
    set(path ${CMAKE_MATCH_2})
    string(APPEND assembly "    .hidden sluice_${set}_${index}, sluice_${set}_end_${index}\n"
                           "    .balign 64\n    .global sluice_${set}_${index}\nsluice_${set}_${index}:\n"
                           "    .incbin \"${path}\"\n    .global sluice_${set}_end_${index}\n"
                           "sluice_${set}_end_${index}:\n    .byte 0\n")
    string(APPEND symbols "extern \"C\" const char sluice_${set}_${index}[], sluice_${set}_end_${index}[];\n")
    string(APPEND table "    {\"${name}\", sluice_${set}_${index}, sluice_${set}_end_${index}},\n")
    list(APPEND paths ${path})
    math(EXPR index "${index} + 1")
  endforeach()
  string(APPEND assembly "    .section .note.GNU-stack,\"\",@progbits\n")
  set(made ${CMAKE_BINARY_DIR}/${set})
  file(CONFIGURE OUTPUT ${made}/${set}.S CONTENT "${assembly}" @ONLY)
  string(CONCAT header "#include \"base/embedded_file.h\"\n" "${symbols}" "namespace sluice::embedded {\n"
         "inline constexpr EmbeddedFile ${set}[] = {\n" "${table}" "};\n}\n")
  file(CONFIGURE OUTPUT ${made}/${set}.h CONTENT "${header}" @ONLY)
  set_source_files_properties(${made}/${set}.S PROPERTIES OBJECT_DEPENDS "${paths}")
  target_sources(${target} PRIVATE ${made}/${set}.S)
  target_include_directories(${target} PRIVATE ${made})
endfunction()

# The demo model.
function(sluice_bundle_model target folder)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*.json ${folder}/*.jinja ${folder}/*.safetensors)
  list(SORT files)
  list(TRANSFORM files REPLACE "^(.+)$" "\\1=${folder}/\\1")
  sluice_embed(${target} bundled_model ${files})
endfunction()

# The web page: our own files, and JavaScript libraries of the distribution with their licenses.
function(sluice_bundle_page target folder)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg)
  list(SORT files)
  list(TRANSFORM files REPLACE "^(.+)$" "\\1=${folder}/\\1")
  foreach(library marked katex)
    set(script /usr/share/javascript/${library}/${library}.min.js)
    set(license /usr/share/doc/libjs-${library}/copyright)
    if(NOT EXISTS ${script} OR NOT EXISTS ${license})
      message(FATAL_ERROR "${script} or ${license} not found: install libjs-${library} (./dev setup does)")
    endif()
    list(APPEND files ${library}.js=${script} ${library}-license.txt=${license})
  endforeach()
  sluice_embed(${target} page_files ${files})
endfunction()
