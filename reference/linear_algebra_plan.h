// The constants of a product modulo primes: how digits become residues and residues become digits again.
#pragma once

#include <cstdint>
#include <vector>

namespace assay::reference {

/// Digits are bits [23 d, 23 d + 23) of an integer, primes are below 2^23: a residue is at most 2^22 in magnitude, 256
/// products of residues at most 2^52.
inline constexpr int kDigitBits = 23;
inline constexpr std::int64_t kResidueDepth = 256;
/// 128 products of a residue and a digit stay below 2^52.
inline constexpr int kMostPrimes = 127;

/// Tables are packed for tile products: panels of tile_kernel().rows primes or digits, zeros behind the last.
struct ResiduePlan {
  int primes = 0;
  int digits = 0;         ///< of an operand
  int result_digits = 0;  ///< of a result
  int dropped_bits = 0;   ///< low bits of a result that are not computed; the error is below (primes + 1) 2^22 units
  std::vector<double> moduli, inverses;  ///< [prime panels * rows]: p and 1 / p; 1 behind the last
  std::vector<double> digit_residues;    ///< [prime panels][digits][rows]: 2^(23 d) mod p
  std::vector<double> weights;           ///< [primes]: (P / p)^-1 mod p, P the product of the primes
  /// [digit panels][primes + 1][rows]: digit d of (P / p) >> dropped_bits; last -(P >> dropped_bits)
  std::vector<double> result_weights;
};

/// Primes whose product has more than `bits` bits (0 if there are not enough).
int primes_for(int bits);

/// `operand_bits`: of the wider operand; `product_bits`: |sum| < 2^product_bits; `error_bits`: an error of
/// 2^error_bits is allowed (negative: none).
ResiduePlan make_plan(int operand_bits, int product_bits, int error_bits);

}  // namespace assay::reference
