# find_package(specc) gives the target specc::specc.
include(${CMAKE_CURRENT_LIST_DIR}/specc-targets.cmake)
