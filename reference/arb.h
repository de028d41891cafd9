// Arb's headers: part of FLINT 3, a library of their own beside FLINT 2.
#pragma once

// Arb declares its exchange with MPFR only if MPFR is known before it (FLINT 3).
#include <mpfr.h>

#if __has_include(<flint/arb_mat.h>)
#include <flint/arb.h>
#include <flint/arb_hypgeom.h>
#include <flint/arb_mat.h>
#else
#include <arb.h>
#include <arb_hypgeom.h>
#include <arb_mat.h>
#endif
