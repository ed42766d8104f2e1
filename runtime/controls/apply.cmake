# Applies faults.cmake: writes the changed sources of libspecc_controls.so and the list of the faults' names into
# the folder `controls` of the build, and sets SPECC_CONTROLS_SOURCES and SPECC_CONTROLS_FOLDER.
# In: SPECC_SOURCES, the sources of libspecc.so.

set(SPECC_CONTROLS_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/controls)
set(changed_files "")
set(fault_list "")

# Exchanges a text of `file`, which must hold it exactly once, for its replacement; `copy/FILE` is what it has become.
function(exchange entry file text replacement)
  if(NOT file IN_LIST changed_files)
    file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${file} copy/${file})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    set(changed_files ${changed_files} ${file} PARENT_SCOPE)
  endif()
  string(FIND "${copy/${file}}" "${text}" first)
  string(FIND "${copy/${file}}" "${text}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "controls/faults.cmake, ${entry}: this text must stand in ${file} exactly once:\n${text}")
  endif()
  string(REPLACE "${text}" "${replacement}" source "${copy/${file}}")
  set(copy/${file} "${source}" PARENT_SCOPE)
endfunction()

macro(keep_in_caller)
  set(changed_files ${changed_files} PARENT_SCOPE)
  foreach(file ${changed_files})
    set(copy/${file} "${copy/${file}}" PARENT_SCOPE)
  endforeach()
endmacro()

function(fault name description)
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 2 ${last} 3)
    math(EXPR text "${i} + 1")
    math(EXPR replacement "${i} + 2")
    string(REPLACE "FAULT" "SPECC_FAULT(${name})" faulty "${ARGV${replacement}}")
    exchange(${name} ${ARGV${i}} "${ARGV${text}}" "${faulty}")
  endforeach()
  keep_in_caller()
  set(fault_list "${fault_list} X(${name})" PARENT_SCOPE)
endfunction()

function(under_any_fault file text replacement)
  string(REPLACE "ANY_FAULT" "SPECC_ANY_FAULT" faulty "${replacement}")
  exchange(under_any_fault ${file} "${text}" "${faulty}")
  keep_in_caller()
endfunction()

# Writes a file of the controls folder if it differs, so that a rerun of cmake compiles nothing again.
function(write_if_changed name content)
  set(before "")
  if(EXISTS ${SPECC_CONTROLS_FOLDER}/${name})
    file(READ ${SPECC_CONTROLS_FOLDER}/${name} before)
  endif()
  if(NOT before STREQUAL content)
    file(WRITE ${SPECC_CONTROLS_FOLDER}/${name} "${content}")
  endif()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/faults.cmake)

write_if_changed(fault_list.h "#define SPECC_FAULTS(X)${fault_list}\n")
set(SPECC_CONTROLS_SOURCES ${SPECC_SOURCES} ${CMAKE_CURRENT_LIST_DIR}/faults.c)
foreach(file ${changed_files})
  write_if_changed(${file} "#include \"controls/faults.h\"\n#line 1 \"${CMAKE_CURRENT_SOURCE_DIR}/${file}\"\n${copy/${file}}")
  list(REMOVE_ITEM SPECC_CONTROLS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  list(APPEND SPECC_CONTROLS_SOURCES ${SPECC_CONTROLS_FOLDER}/${file})
endforeach()
