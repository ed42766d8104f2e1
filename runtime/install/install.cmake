# Where things go: into the Python package while its wheel is built, else into a prefix,
#   cmake --install BUILD --prefix PREFIX
# as lib/libspecc.so, include/specc*.h, a pkg-config file and a CMake package.

set(headers include/specc.h include/specc_extend.h include/specc_judge.h)

if(SKBUILD)
  # Not by wheel.packages of pyproject.toml, which takes only folders named like their package.
  install(DIRECTORY python/ DESTINATION specc/runtime FILES_MATCHING PATTERN "*.py")
  install(TARGETS specc specc_controls LIBRARY DESTINATION specc/runtime)
  install(FILES ${headers} DESTINATION specc/runtime/include)
  if(SPECC_NVCC)
    install(FILES ${fatbin} DESTINATION specc/runtime)
  endif()
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS specc EXPORT specc-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(SPECC_NVCC)   # libspecc looks for the kernels beside itself
  install(FILES ${fatbin} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# The prefix as seen from the pkg-config file, so that an installed tree can be moved.
file(RELATIVE_PATH SPECC_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(install/specc.pc.in specc.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/specc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/specc)
write_basic_package_version_file(specc-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT specc-targets NAMESPACE specc:: DESTINATION ${package})
install(FILES install/specc-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/specc-config-version.cmake
  DESTINATION ${package})
