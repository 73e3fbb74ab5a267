# Fails when an object compiled for an instruction set defines a weak function outside of that set's namespace: the
# linker could pick it for code that runs on older CPUs. cmake -DNM=... -DISA=... -DOBJECTS=a|b -P isa_symbols.cmake
# Names that nm cannot read (lambdas in templates over a struct's value) have the namespace with its length before it.
string(REPLACE "|" ";" objects "${OBJECTS}")
string(LENGTH "${ISA}" length)
foreach(object ${objects})
  execute_process(COMMAND ${NM} --demangle --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* W [^\n]*" weak "${symbols}")
  foreach(symbol ${weak})
    if(NOT symbol MATCHES "sluice::${ISA}::|_ZZ?N6sluice.*NS_${length}${ISA}[0-9]")
      message(SEND_ERROR "${object} defines ${symbol}")
    endif()
  endforeach()
endforeach()
