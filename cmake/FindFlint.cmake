# FLINT with Arb: FLINT 3 holds Arb itself; with FLINT 2 Arb is a library of its own (libflint-arb on Debian, libarb elsewhere).
# Gives the target Flint::Flint; headers are included as <arb.h> or <flint/arb.h> through reference/arb.h.
find_path(FLINT_INCLUDE_DIR flint/flint.h)
find_library(FLINT_LIBRARY flint)
find_library(MPFR_LIBRARY mpfr)
find_library(GMP_LIBRARY gmp)
if(FLINT_INCLUDE_DIR)
  if(EXISTS "${FLINT_INCLUDE_DIR}/flint/arb.h")
    set(FLINT_ARB_LIBRARY "${FLINT_LIBRARY}")
  else()
    find_library(FLINT_ARB_LIBRARY NAMES flint-arb arb)
  endif()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Flint REQUIRED_VARS FLINT_LIBRARY FLINT_ARB_LIBRARY MPFR_LIBRARY GMP_LIBRARY FLINT_INCLUDE_DIR)
if(Flint_FOUND AND NOT TARGET Flint::Flint)
  add_library(Flint::Flint INTERFACE IMPORTED)
  set_target_properties(Flint::Flint PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${FLINT_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${FLINT_ARB_LIBRARY};${FLINT_LIBRARY};${MPFR_LIBRARY};${GMP_LIBRARY}")
endif()
