#include "reference/linear_algebra_residues.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "cases/error.h"
#include "reference/linear_algebra_kernel.h"
#include "reference/linear_algebra_plan.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// Bits behind the working precision that fixed point keeps.
constexpr int kGuardBits = 32;
constexpr std::int64_t kLargestExponent = std::int64_t{1} << 40;
/// Rows and columns of a product that are in work at a time: bounds the memory for residues.
constexpr std::int64_t kBlock = 256;

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
int bit_width(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))); }

/// Writes the digits of trunc(x * 2^shift) to digits[d * stride].
void write_digits(const Mantissa& x, std::int64_t shift, int count, double* digits, std::int64_t stride) {
  constexpr std::uint64_t mask = (std::uint64_t{1} << kDigitBits) - 1;
  // Bit b of the integer is bit b - start of the limbs.
  const std::int64_t start = shift + x.exponent - 64 * x.size;
  const std::int64_t first = start > 0 ? start / kDigitBits : 0;
  for (std::int64_t d = first; d < count; ++d) {
    const std::int64_t position = d * kDigitBits - start + 64;  // one limb of zeros in front
    const std::int64_t limb = position / 64 - 1;
    const int offset = static_cast<int>(position % 64);
    if (limb >= x.size) break;
    const std::uint64_t low = limb >= 0 ? x.limbs[limb] : 0;
    const std::uint64_t high = limb + 1 < x.size ? x.limbs[limb + 1] : 0;
    const std::uint64_t bits = ((low >> offset) | (high << 1 << (63 - offset))) & mask;
    digits[d * stride] = x.negative ? -static_cast<double>(bits) : static_cast<double>(bits);
  }
}

/// Rows [first, first + count) of an operand at inner positions [begin, begin + depth), modulo every prime.
template <class T>
class ResidueBlock {
 public:
  ResidueBlock(const FixedPoint<T>& operand, const ResiduePlan& plan, int panel_width)
      : operand_(operand), plan_(plan), width_(panel_width) {}

  void load(std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t depth) {
    panel_size_ = depth * width_;
    panels_ = (count + width_ - 1) / width_;
    residues_.resize(static_cast<std::size_t>(panel_size_ * panels_ * plan_.primes));
    parallel_for(panels_, [&](std::int64_t panel) { load_panel(first + panel * width_, panel, begin); });
  }

  std::int64_t panels() const { return panels_; }
  /// [depth, panel width]
  const double* panel(std::int64_t prime, std::int64_t index) const {
    return residues_.data() + (prime * panels_ + index) * panel_size_;
  }

 private:
  void load_panel(std::int64_t row, std::int64_t panel, std::int64_t begin) {
    const TileKernel& kernel = tile_kernel();
    const std::int64_t group = kernel.columns, rows = kernel.rows;
    std::vector<double> digits(static_cast<std::size_t>(plan_.digits * group));
    std::array<double, static_cast<std::size_t>(kMostTileRows) * kMostTileColumns> tile;
    for (std::int64_t entry = 0; entry < panel_size_; entry += group) {
      const std::int64_t present = std::min(group, panel_size_ - entry);
      std::fill(digits.begin(), digits.end(), 0.0);
      for (std::int64_t t = 0; t < present; ++t) {
        const std::int64_t i = row + (entry + t) % width_, k = begin + (entry + t) / width_;
        if (i >= operand_.rows) continue;
        const Mantissa x = mantissa(operand_.data[i * operand_.inner + k]);
        if (x.size == 0) continue;
        write_digits(x, operand_.width - operand_.exponents[static_cast<std::size_t>(i)], plan_.digits,
                     digits.data() + t, group);
      }
      for (std::int64_t p = 0; p < plan_.primes; p += rows) {
        tile.fill(0.0);
        kernel.exact(plan_.digit_residues.data() + p * plan_.digits, digits.data(), plan_.digits, tile.data());
        kernel.reduce(tile.data(), plan_.moduli.data() + p, plan_.inverses.data() + p);
        for (std::int64_t r = 0; r < std::min(rows, plan_.primes - p); ++r)
          std::copy_n(tile.data() + r * group, present,
                      residues_.data() + ((p + r) * panels_ + panel) * panel_size_ + entry);
      }
    }
  }

  const FixedPoint<T>& operand_;
  const ResiduePlan& plan_;
  std::int64_t width_, panel_size_ = 0, panels_ = 0;
  std::vector<double> residues_;
};

/// The signed integer sum_d digits[d * stride] 2^(23 d) as limbs. `limbs` has room for it.
FixedSum assembled(const double* digits, std::int64_t stride, int count, std::vector<mp_limb_t>& limbs) {
  std::int64_t carry = 0;
  std::uint64_t word = 0;
  int filled = 0;
  mp_size_t size = 0;
  const auto push = [&](std::uint64_t bits, int many) {
    word |= bits << filled;
    if (filled + many >= 64) {
      limbs[static_cast<std::size_t>(size++)] = word;
      word = filled == 0 ? 0 : bits >> (64 - filled);
      filled -= 64;
    }
    filled += many;
  };
  constexpr std::int64_t mask = (std::int64_t{1} << kDigitBits) - 1;
  for (int d = 0; d < count; ++d) {
    carry += static_cast<std::int64_t>(digits[d * stride]);
    push(static_cast<std::uint64_t>(carry & mask), kDigitBits);
    carry >>= kDigitBits;
  }
  const bool negative = carry < 0;
  // What lies above the last digit is the sign only; it fills the last limb.
  word |= static_cast<std::uint64_t>(carry) << filled;
  limbs[static_cast<std::size_t>(size++)] = word;
  if (negative) mpn_neg(limbs.data(), limbs.data(), size);
  while (size > 0 && limbs[static_cast<std::size_t>(size - 1)] == 0) --size;
  return {limbs.data(), size, negative, 0, true, 0};
}

/// Sums modulo primes, as tiles [prime][row panel][column panel][tile].
struct Sums {
  std::int64_t row_panels, column_panels, tile_size;
  std::vector<double> tiles;
  double* tile(std::int64_t prime, std::int64_t i, std::int64_t j) {
    return tiles.data() + ((prime * row_panels + i) * column_panels + j) * tile_size;
  }
};

/// Adds the products of two blocks to the sums and reduces them.
template <class T>
void multiply(const ResidueBlock<T>& x, const ResidueBlock<T>& w, std::int64_t depth, const ResiduePlan& plan,
              Sums& sums) {
  const TileKernel& kernel = tile_kernel();
  parallel_for(plan.primes * x.panels(), [&](std::int64_t item) {
    const std::int64_t p = item / x.panels(), i = item % x.panels();
    std::array<double, kMostTileRows> moduli, inverses;
    moduli.fill(plan.moduli[static_cast<std::size_t>(p)]);
    inverses.fill(plan.inverses[static_cast<std::size_t>(p)]);
    for (std::int64_t j = 0; j < w.panels(); ++j) {
      // Reduced sums and 256 products of residues stay below 2^52.
      double* tile = sums.tile(p, i, j);
      kernel.exact(x.panel(p, i), w.panel(p, j), depth, tile);
      kernel.reduce(tile, moduli.data(), inverses.data());
    }
  });
}

/// From the residues of a tile to the digits of its sums.
class Recombination {
 public:
  explicit Recombination(const ResiduePlan& plan)
      : plan_(plan),
        kernel_(tile_kernel()),
        stride_((plan.primes + 1) * kernel_.columns),
        residues_(static_cast<std::size_t>(stride_ * kernel_.rows)),
        digits_(static_cast<std::size_t>(rounded_up(plan.result_digits, kernel_.rows) * kernel_.columns)) {}

  void load_tile(Sums& sums, std::int64_t i, std::int64_t j) {
    std::array<double, static_cast<std::size_t>(kMostTileRows) * kMostTileColumns> quotients{};
    for (std::int64_t p = 0; p < plan_.primes; ++p) {
      const auto at = static_cast<std::size_t>(p);
      kernel_.weigh(sums.tile(p, i, j), plan_.moduli[at], plan_.inverses[at], plan_.weights[at],
                    residues_.data() + p * kernel_.columns, stride_, quotients.data());
    }
    // sum c_p P / p is the result plus a multiple of P, and the result is less than P / 4.
    kernel_.round(quotients.data(), residues_.data() + plan_.primes * kernel_.columns, stride_);
  }

  /// The sums of one row of the tile as digits()[d * columns + column] 2^(23 d).
  void load_row(std::int64_t row) {
    std::fill(digits_.begin(), digits_.end(), 0.0);
    for (std::int64_t d = 0; d < plan_.result_digits; d += kernel_.rows)
      kernel_.exact(plan_.result_weights.data() + d * (plan_.primes + 1), residues_.data() + row * stride_,
                    plan_.primes + 1, digits_.data() + d * kernel_.columns);
  }
  const double* digits() const { return digits_.data(); }

 private:
  const ResiduePlan& plan_;
  const TileKernel& kernel_;
  std::int64_t stride_;  ///< between rows of residues [rows, primes + 1, columns]
  std::vector<double> residues_, digits_;
};

}  // namespace

Mantissa mantissa(const Real& x) {
  const mpfr_srcptr value = x.backend().data();
  if (mpfr_zero_p(value)) return {};
  if (!mpfr_number_p(value) || std::abs(mpfr_get_exp(value)) > kLargestExponent) return {nullptr, 0, 0, false, false};
  return {value->_mpfr_d, static_cast<mp_size_t>((mpfr_get_prec(value) + 63) / 64), mpfr_get_exp(value),
          mpfr_signbit(value) != 0, true};
}

Mantissa mantissa(const Ball& x) {
  const arf_struct* value = arb_midref(x.data());
  if (arf_is_zero(value)) return {};
  if (arf_is_special(value) || COEFF_IS_MPZ(ARF_EXP(value)) || std::abs(ARF_EXP(value)) > kLargestExponent)
    return {nullptr, 0, 0, false, false};
  mp_srcptr limbs = nullptr;
  mp_size_t size = 0;
  ARF_GET_MPN_READONLY(limbs, size, value);
  return {limbs, size, ARF_EXP(value), ARF_SGNBIT(value) != 0, true};
}

int fixed_point_width(int bits, std::int64_t inner) { return bits + kGuardBits + bit_width(inner); }

bool residues_suffice(int left_width, int right_width, std::int64_t inner) {
  return std::max(left_width, right_width) <= kMostPrimes * kDigitBits &&
         primes_for(left_width + right_width + bit_width(inner) + 2) > 0;
}

template <class T>
FixedPoint<T>::FixedPoint(const T* values, std::int64_t row_count, std::int64_t row_size, int most)
    : data(values), rows(row_count), inner(row_size), exponents(static_cast<std::size_t>(row_count), 0) {
  for (std::int64_t i = 0; i < rows; ++i) {
    bool any = false;
    std::int64_t highest = 0, lowest = 0;
    for (std::int64_t k = 0; k < inner; ++k) {
      const Mantissa x = mantissa(data[i * inner + k]);
      if (!x.usable) usable = false;
      if (x.size == 0) continue;
      mp_size_t zeros = 0;
      while (x.limbs[zeros] == 0) ++zeros;
      const std::int64_t last = x.exponent - 64 * (x.size - zeros) + std::countr_zero(std::uint64_t{x.limbs[zeros]});
      highest = any ? std::max(highest, x.exponent) : x.exponent;
      lowest = any ? std::min(lowest, last) : last;
      any = true;
    }
    if (highest - lowest > most) exact = false;
    exponents[static_cast<std::size_t>(i)] = highest;
    width = std::max(width, static_cast<int>(std::min<std::int64_t>(most, highest - lowest)));
  }
}

template <class T>
void residue_product(const FixedPoint<T>& x, const FixedPoint<T>& w, int bits,
                     const std::function<void(std::int64_t, std::int64_t, const FixedSum&)>& store) {
  ASSAY_CHECK(x.inner == w.inner);
  const TileKernel& kernel = tile_kernel();
  const std::int64_t inner = x.inner;
  const int unit = x.width + w.width;  // the integers of the product are in units of 2^-unit
  const ResiduePlan plan = make_plan(std::max(x.width, w.width), unit + bit_width(inner), unit - bits - kGuardBits);
  const bool exact = x.exact && w.exact && plan.dropped_bits == 0;
  ResidueBlock<T> left(x, plan, kernel.rows), right(w, plan, kernel.columns);
  // Few rows leave room for more columns, which saves loading the rows again.
  const std::int64_t row_step = rounded_up(kBlock, kernel.rows);
  const std::int64_t column_step = rounded_up(x.rows <= kBlock / 2 ? 2 * kBlock : kBlock, kernel.columns);
  Sums sums{0, 0, static_cast<std::int64_t>(kernel.rows) * kernel.columns, {}};
  for (std::int64_t column = 0; column < w.rows; column += column_step) {
    for (std::int64_t row = 0; row < x.rows; row += row_step) {
      const std::int64_t rows = std::min(row_step, x.rows - row), columns = std::min(column_step, w.rows - column);
      sums.row_panels = (rows + kernel.rows - 1) / kernel.rows;
      sums.column_panels = (columns + kernel.columns - 1) / kernel.columns;
      sums.tiles.assign(static_cast<std::size_t>(plan.primes * sums.row_panels * sums.column_panels * sums.tile_size),
                        0.0);
      for (std::int64_t k = 0; k < inner; k += kResidueDepth) {
        const std::int64_t depth = std::min(kResidueDepth, inner - k);
        left.load(row, rows, k, depth);
        right.load(column, columns, k, depth);
        multiply(left, right, depth, plan, sums);
      }
      parallel_for(sums.row_panels, [&](std::int64_t panel) {
        Recombination recombination(plan);
        std::vector<mp_limb_t> limbs(static_cast<std::size_t>(plan.result_digits * kDigitBits / 64 + 2));
        const std::int64_t present_rows = std::min<std::int64_t>(kernel.rows, rows - panel * kernel.rows);
        for (std::int64_t tile = 0; tile < sums.column_panels; ++tile) {
          const std::int64_t present_columns = std::min<std::int64_t>(kernel.columns, columns - tile * kernel.columns);
          recombination.load_tile(sums, panel, tile);
          for (std::int64_t r = 0; r < present_rows; ++r) {
            recombination.load_row(r);
            for (std::int64_t c = 0; c < present_columns; ++c) {
              const std::int64_t i = row + panel * kernel.rows + r, j = column + tile * kernel.columns + c;
              const std::int64_t scale =
                  x.exponents[static_cast<std::size_t>(i)] + w.exponents[static_cast<std::size_t>(j)];
              FixedSum sum = assembled(recombination.digits() + c, kernel.columns, plan.result_digits, limbs);
              sum.exponent = scale - unit + plan.dropped_bits;
              sum.exact = exact;
              sum.error_exponent = scale - bits - kGuardBits + 2;
              store(i, j, sum);
            }
          }
        }
      });
    }
  }
}

#define ASSAY_INSTANTIATE(T)                                                     \
  template struct FixedPoint<T>;                                                 \
  template void residue_product(const FixedPoint<T>&, const FixedPoint<T>&, int, \
                                const std::function<void(std::int64_t, std::int64_t, const FixedSum&)>&);
ASSAY_INSTANTIATE(Real)
ASSAY_INSTANTIATE(Ball)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
