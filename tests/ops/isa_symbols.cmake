# Fails when an object compiled for an instruction set defines a weak function outside of that set's namespace: the
# linker could pick it for code that runs on older CPUs. cmake -DNM=... -DISA=... -DOBJECTS=a|b -P isa_symbols.cmake
string(REPLACE "|" ";" objects "${OBJECTS}")
foreach(object ${objects})
  execute_process(COMMAND ${NM} --demangle --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* W [^\n]*" weak "${symbols}")
  foreach(symbol ${weak})
    if(NOT symbol MATCHES "sluice::${ISA}::")
      message(SEND_ERROR "${object} defines ${symbol}")
    endif()
  endforeach()
endforeach()
