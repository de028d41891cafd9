#include "reference/linear_algebra_kernel.h"

#include <algorithm>
#include <vector>

#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// The body of every tile product. Exact tiles may fuse multiplication and addition: there is nothing to round.
template <int width, int rows, int vectors, bool fuse>
[[gnu::always_inline]] inline void tile_product(const double* a, const double* b, std::int64_t depth, double* c) {
  typedef double Vector __attribute__((vector_size(width * sizeof(double))));
  constexpr int columns = width * vectors;
  Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) __builtin_memcpy(&sums[i][v], c + i * columns + v * width, sizeof(Vector));
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector right[vectors];
    __builtin_memcpy(right, b + k * columns, sizeof(right));
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const double left = a[k * rows + i];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        if constexpr (fuse) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
          sums[i][v] += left * right[v];
        } else {
          sums[i][v] += left * right[v];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) __builtin_memcpy(c + i * columns + v * width, &sums[i][v], sizeof(Vector));
  }
}

/// The nearest integers, by what a sum at 2^52 drops.
constexpr double kShift = 0x1.8p52;

template <int width, int rows, int vectors>
[[gnu::always_inline]] inline void tile_reduce(double* tile, const double* moduli, const double* inverses) {
  typedef double Vector __attribute__((vector_size(width * sizeof(double))));
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      double* place = tile + (i * vectors + v) * width;
      Vector x;
      __builtin_memcpy(&x, place, sizeof(x));
      const Vector quotient = (x * inverses[i] + kShift) - kShift;
      x -= quotient * moduli[i];
      __builtin_memcpy(place, &x, sizeof(x));
    }
  }
}

template <int width, int rows, int vectors>
[[gnu::always_inline]] inline void tile_weigh(const double* sums, double modulus, double inverse, double weight,
                                              double* residues, std::int64_t stride, double* quotients) {
  typedef double Vector __attribute__((vector_size(width * sizeof(double))));
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      const int place = (i * vectors + v) * width;
      Vector x, quotient;
      __builtin_memcpy(&x, sums + place, sizeof(x));
      __builtin_memcpy(&quotient, quotients + place, sizeof(quotient));
      x -= ((x * inverse + kShift) - kShift) * modulus;
      x *= weight;
      x -= ((x * inverse + kShift) - kShift) * modulus;
      quotient += x * inverse;
      __builtin_memcpy(residues + i * stride + v * width, &x, sizeof(x));
      __builtin_memcpy(quotients + place, &quotient, sizeof(quotient));
    }
  }
}

template <int width, int rows, int vectors>
[[gnu::always_inline]] inline void tile_round(const double* tile, double* result, std::int64_t stride) {
  typedef double Vector __attribute__((vector_size(width * sizeof(double))));
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) {
      Vector x;
      __builtin_memcpy(&x, tile + (i * vectors + v) * width, sizeof(x));
      x = (x + kShift) - kShift;
      __builtin_memcpy(result + i * stride + v * width, &x, sizeof(x));
    }
  }
}

// GCC contracts per function; without the attribute the project's -ffp-contract=off holds.
#ifdef __clang__
#define ASSAY_FUSE
#else
#define ASSAY_FUSE optimize("fp-contract=fast")
#endif
#define ASSAY_TILE_KERNEL(name, isa, width, rows, vectors)                                                             \
  isa void name##_plain(const double* a, const double* b, std::int64_t depth, double* c) {                             \
    tile_product<width, rows, vectors, false>(a, b, depth, c);                                                         \
  }                                                                                                                    \
  isa __attribute__((ASSAY_FUSE)) void name##_exact(const double* a, const double* b, std::int64_t depth, double* c) { \
    tile_product<width, rows, vectors, true>(a, b, depth, c);                                                          \
  }                                                                                                                    \
  isa void name##_reduce(double* tile, const double* moduli, const double* inverses) {                                 \
    tile_reduce<width, rows, vectors>(tile, moduli, inverses);                                                         \
  }                                                                                                                    \
  isa void name##_weigh(const double* sums, double modulus, double inverse, double weight, double* residues,           \
                        std::int64_t stride, double* quotients) {                                                      \
    tile_weigh<width, rows, vectors>(sums, modulus, inverse, weight, residues, stride, quotients);                     \
  }                                                                                                                    \
  isa void name##_round(const double* tile, double* result, std::int64_t stride) {                                     \
    tile_round<width, rows, vectors>(tile, result, stride);                                                            \
  }                                                                                                                    \
  constexpr TileKernel name##_kernel{rows,          width * vectors, name##_plain, name##_exact,                       \
                                     name##_reduce, name##_weigh,    name##_round};

#ifdef __x86_64__
ASSAY_TILE_KERNEL(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,fma,avx2"))), 8, 8, 3)
ASSAY_TILE_KERNEL(avx2, __attribute__((target("avx2,fma"))), 4, 4, 3)
#endif
ASSAY_TILE_KERNEL(portable, , 2, 4, 2)

const TileKernel& choose() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma"))
    return avx512_kernel;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_kernel;
#endif
  return portable_kernel;
}

/// Rows [first, first + width) of a matrix as a panel [inner, width]; zeros behind the last row.
void pack(const double* source, std::int64_t rows, std::int64_t inner, std::int64_t first, int width, double* panel) {
  const std::int64_t present = std::min<std::int64_t>(width, rows - first);
  if (present < width) std::fill(panel, panel + inner * width, 0.0);
  for (std::int64_t r = 0; r < present; ++r)
    for (std::int64_t k = 0; k < inner; ++k) panel[k * width + r] = source[(first + r) * inner + k];
}

/// Panels of weights that are packed at a time, and the part of `inner` that a tile takes before the next one.
constexpr std::int64_t kPanelsAtATime = 10;
constexpr std::int64_t kDepth = 256;

}  // namespace

const TileKernel& tile_kernel() {
  static const TileKernel& kernel = choose();
  return kernel;
}

void plain_product(const double* x, std::int64_t rows, const double* w, std::int64_t columns, std::int64_t inner,
                   double* y) {
  const TileKernel& kernel = tile_kernel();
  const std::int64_t tile_rows = kernel.rows, tile_columns = kernel.columns, tile_size = tile_rows * tile_columns;
  const std::int64_t panels = (columns + tile_columns - 1) / tile_columns;
  std::vector<double> packed(static_cast<std::size_t>(std::min(panels, kPanelsAtATime) * inner * tile_columns));
  for (std::int64_t begin = 0; begin < panels; begin += kPanelsAtATime) {
    const std::int64_t count = std::min(kPanelsAtATime, panels - begin);
    parallel_for(count, [&](std::int64_t j) {
      pack(w, columns, inner, (begin + j) * tile_columns, kernel.columns, packed.data() + j * inner * tile_columns);
    });
    parallel_for((rows + tile_rows - 1) / tile_rows, [&](std::int64_t i) {
      std::vector<double> left(static_cast<std::size_t>(inner * tile_rows));
      std::vector<double> tiles(static_cast<std::size_t>(count * tile_size), 0.0);
      pack(x, rows, inner, i * tile_rows, kernel.rows, left.data());
      for (std::int64_t k = 0; k < inner; k += kDepth) {
        for (std::int64_t j = 0; j < count; ++j)
          kernel.plain(left.data() + k * tile_rows, packed.data() + (j * inner + k) * tile_columns,
                       std::min(kDepth, inner - k), tiles.data() + j * tile_size);
      }
      for (std::int64_t r = 0; r < std::min(tile_rows, rows - i * tile_rows); ++r) {
        double* row = y + (i * tile_rows + r) * columns;
        const std::int64_t last = std::min(columns, (begin + count) * tile_columns);
        for (std::int64_t c = begin * tile_columns; c < last; ++c) {
          const std::int64_t local = c - begin * tile_columns;
          row[c] = tiles[static_cast<std::size_t>(local / tile_columns * tile_size + r * tile_columns +
                                                  local % tile_columns)];
        }
      }
    });
  }
}

}  // namespace assay::reference
