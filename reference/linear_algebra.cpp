#include "reference/linear_algebra.h"

#include <type_traits>

#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// Guard bits that make the final rounding of a Real product the dominant one.
constexpr int kGuardBits = 32;

template <class T>
std::vector<Ball> to_balls(const Array<T>& x) {
  std::vector<Ball> balls(x.data.size());
  for (std::size_t i = 0; i < balls.size(); ++i) balls[i] = to_ball(x.data[i]);
  return balls;
}

}  // namespace

template <class T>
Array<T> matmul_nt(const Array<T>& x, const Array<T>& w) {
  const std::int64_t inner = w.dim(1), columns = w.dim(0);
  ASSAY_CHECK(x.dim(-1) == inner);
  const std::int64_t rows = inner == 0 ? element_count(Shape(x.shape.begin(), x.shape.end() - 1)) : x.size() / inner;
  Shape shape = x.shape;
  shape.back() = columns;
  Array<T> y(shape);
  if constexpr (std::is_same_v<T, Real>) {
    const std::vector<Ball> left = to_balls(x), right = to_balls(w);
    parallel_for(rows, [&](std::int64_t i) {
      const BallBits wider(context().bits + kGuardBits);
      for (std::int64_t j = 0; j < columns; ++j) {
        const Ball sum = dot(left.data() + i * inner, 1, right.data() + j * inner, 1, inner);
        arf_get_mpfr(y[i * columns + j].backend().data(), arb_midref(sum.data()), MPFR_RNDN);
      }
    });
  } else {
    parallel_for(rows, [&](std::int64_t i) {
      for (std::int64_t j = 0; j < columns; ++j)
        y[i * columns + j] = dot(x.row(i, inner), 1, w.row(j, inner), 1, inner);
    });
  }
  return y;
}

#define ASSAY_INSTANTIATE(T) template Array<T> matmul_nt(const Array<T>&, const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
