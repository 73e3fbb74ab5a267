# What `cmake --install` and the Debian package contain: the program, its completions and manual page. The package adds a
# systemd unit and its configuration.
include(GNUInstallDirs)

install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# The program prints its own completions and manual page.
set(made ${CMAKE_BINARY_DIR}/package)
file(MAKE_DIRECTORY ${made})
install(CODE "
  foreach(page \"completion;bash\" \"completion;zsh\" \"completion;fish\" \"man\")
    string(REPLACE \";\" \"-\" name \"\${page}\")
    execute_process(COMMAND \"$<TARGET_FILE:sluice>\" \${page} OUTPUT_FILE \"${made}/\${name}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
set(data ${CMAKE_INSTALL_DATADIR})
install(FILES ${made}/completion-bash DESTINATION ${data}/bash-completion/completions RENAME sluice)
install(FILES ${made}/completion-zsh DESTINATION ${data}/zsh/vendor-completions RENAME _sluice)
install(FILES ${made}/completion-fish DESTINATION ${data}/fish/vendor_completions.d RENAME sluice.fish)
install(FILES ${made}/man DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME sluice.1)
install(FILES LICENSE DESTINATION ${data}/doc/sluice RENAME copyright)

# The service and its configuration belong to the system: installed below /usr only.
set(service_files ${CMAKE_SOURCE_DIR}/packaging)
install(CODE "
  if(NOT CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
    return()
  endif()
  file(INSTALL DESTINATION /usr/lib/systemd/system TYPE FILE FILES \"${service_files}/sluice.service\")
  file(INSTALL DESTINATION /etc/sluice TYPE FILE FILES \"${service_files}/config.yaml\")")

set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VENDOR Sluice)
set(CPACK_PACKAGE_CONTACT "Sluice maintainers <maintainers@sluice.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runs and serves large language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "A server with the APIs of OpenAI, Anthropic, Ollama, TGI and llama.cpp, and a command line.
 It loads checkpoints of Hugging Face and GGUF files, and runs on CPUs and NVIDIA GPUs.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
# For --distributed-executor-backend mpi and --kv-transfer-backend ucx.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, libucx0")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${service_files}/conffiles ${service_files}/postinst ${service_files}/prerm
    ${service_files}/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES OFF)  # the build has stripped the program
include(CPack)
