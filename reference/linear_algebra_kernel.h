// The inner loops of the matrix products: small tiles of doubles in the widest vectors that the processor has. The
// results do not depend on the processor: plain tiles round every product and every sum, exact tiles round nothing.
#pragma once

#include <cstdint>

namespace assay::reference {

/// c[rows, columns] += sum_k a[k, rows] * b[k, columns] over k < depth, in order of k.
using TileProduct = void (*)(const double* a, const double* b, std::int64_t depth, double* c);

struct TileKernel {
  int rows, columns;
  TileProduct plain;  ///< rounds each product, then each sum
  TileProduct exact;  ///< for integers whose sums of absolute products stay below 2^53
  /// tile[i, j] -> the integer of least magnitude that is congruent to it modulo moduli[i], for integers of magnitude
  /// at most 2^52 and odd moduli below 2^23; a value near half a modulus may take either sign. inverses[i] = 1 /
  /// moduli[i].
  void (*reduce)(double* tile, const double* moduli, const double* inverses);
  /// residue = sums * weight, all modulo one modulus; quotients += residue / modulus. `sums` is a tile below 2^52,
  /// row r of the residues goes to residues + r * stride.
  void (*weigh)(const double* sums, double modulus, double inverse, double weight, double* residues,
                std::int64_t stride, double* quotients);
  /// result = the tile rounded to integers, row by row as in weigh.
  void (*round)(const double* tile, double* result, std::int64_t stride);
};

inline constexpr int kMostTileRows = 8, kMostTileColumns = 24;

/// The kernel of this processor.
const TileKernel& tile_kernel();

/// y[m, n] = sum_k x[m, k] * w[n, k], products and sums rounded one by one in order of k.
void plain_product(const double* x, std::int64_t rows, const double* w, std::int64_t columns, std::int64_t inner,
                   double* y);

}  // namespace assay::reference
