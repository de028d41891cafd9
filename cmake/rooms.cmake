# A room is a library with only the links it may have. Its headers are reached as "<room>/..." through a folder of its own, which
# only those who link the room see: an include that crosses a wall does not compile.
function(assay_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(assay_${name} STATIC ${sources})
  set(headers "${CMAKE_BINARY_DIR}/rooms/${name}")
  file(MAKE_DIRECTORY "${headers}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${headers}/${name}" SYMBOLIC)
  target_include_directories(assay_${name} PUBLIC "${headers}")
  target_link_libraries(assay_${name} PUBLIC ${ARGN})
endfunction()
