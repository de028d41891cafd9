#include <algorithm>

#include "reference/model/graph.h"

namespace assay::reference {

template <class T>
Var<T> Moves<T>::reshaped(Tape<T>& tape, const Var<T>& x, Shape shape) {
  return tape.record(x->value.reshaped(std::move(shape)), [x](const Array<T>& dy) { Tape<T>::add(x, dy); });
}

template <class T>
Var<T> Moves<T>::gathered(Tape<T>& tape, const Var<T>& x, std::vector<std::int64_t> rows) {
  const std::int64_t width = x->value.dim(0) == 0 ? 0 : x->value.size() / x->value.dim(0);
  Shape shape = x->value.shape;
  shape[0] = static_cast<std::int64_t>(rows.size());
  Array<T> y(shape);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const T* row = x->value.row(rows[i], width);
    std::copy(row, row + width, y.row(static_cast<std::int64_t>(i), width));
  }
  return tape.record(std::move(y), [x, rows = std::move(rows), width](const Array<T>& dy) {
    Array<T> dx(x->value.shape);
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::int64_t c = 0; c < width; ++c)
        dx[rows[i] * width + c] = dx[rows[i] * width + c] + dy[static_cast<std::int64_t>(i) * width + c];
    Tape<T>::add(x, dx);
  });
}

template <class T>
Var<T> Moves<T>::placed(Tape<T>& tape, const Var<T>& x, std::vector<std::int64_t> places, std::int64_t count) {
  const std::int64_t width = x->value.dim(-1);
  Array<T> y({count, width});
  for (std::size_t i = 0; i < places.size(); ++i) {
    const T* row = x->value.row(static_cast<std::int64_t>(i), width);
    std::copy(row, row + width, y.row(places[i], width));
  }
  return tape.record(std::move(y), [x, places = std::move(places), width](const Array<T>& dy) {
    Array<T> dx(x->value.shape);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const T* row = dy.row(places[i], width);
      std::copy(row, row + width, dx.row(static_cast<std::int64_t>(i), width));
    }
    Tape<T>::add(x, dx);
  });
}

template <class T>
Var<T> Moves<T>::columns(Tape<T>& tape, const Var<T>& x, std::int64_t width, std::int64_t begin, std::int64_t count) {
  const std::int64_t rows = x->value.size() / width;
  Array<T> y({rows, count});
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy(x->value.row(r, width) + begin, x->value.row(r, width) + begin + count, y.row(r, count));
  return tape.record(std::move(y), [x, width, begin, count, rows](const Array<T>& dy) {
    Array<T> dx(x->value.shape);
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy(dy.row(r, count), dy.row(r, count) + count, dx.row(r, width) + begin);
    Tape<T>::add(x, dx);
  });
}

template <class T>
Var<T> Moves<T>::beside(Tape<T>& tape, const Var<T>& a, const Var<T>& b) {
  const std::int64_t left = a->value.dim(-1), right = b->value.dim(-1), width = left + right;
  const std::int64_t rows = a->value.size() / left;
  Array<T> y({rows, width});
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy(a->value.row(r, left), a->value.row(r, left) + left, y.row(r, width));
    std::copy(b->value.row(r, right), b->value.row(r, right) + right, y.row(r, width) + left);
  }
  return tape.record(std::move(y), [a, b, left, right, width, rows](const Array<T>& dy) {
    Array<T> da(a->value.shape), db(b->value.shape);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy(dy.row(r, width), dy.row(r, width) + left, da.row(r, left));
      std::copy(dy.row(r, width) + left, dy.row(r, width) + width, db.row(r, right));
    }
    Tape<T>::add(a, da);
    Tape<T>::add(b, db);
  });
}

template <class T>
Var<T> Moves<T>::assembled(Tape<T>& tape, const std::vector<Var<T>>& parts) {
  ASSAY_CHECK(!parts.empty());
  // The parts are zero where others are not: copying, not adding, keeps balls and bounds as they are.
  Array<T> y = parts.front()->value;
  for (std::size_t p = 1; p < parts.size(); ++p)
    for (std::int64_t i = 0; i < y.size(); ++i)
      if (!(midpoint(parts[p]->value[i]) == 0.0 && radius(parts[p]->value[i]) == 0.0)) y[i] = parts[p]->value[i];
  return tape.record(std::move(y), [parts](const Array<T>& dy) {
    for (const Var<T>& part : parts) Tape<T>::add(part, dy);
  });
}

template <class T>
Var<T> Moves<T>::masked(Tape<T>& tape, const Var<T>& x, std::vector<bool> keep) {
  const std::int64_t width = x->value.dim(-1);
  const auto cleared = [keep = std::move(keep), width](Array<T> y) {
    for (std::size_t r = 0; r < keep.size(); ++r)
      if (!keep[r]) std::fill_n(y.row(static_cast<std::int64_t>(r), width), width, T(0.0));
    return y;
  };
  return tape.record(cleared(x->value), [x, cleared](const Array<T>& dy) { Tape<T>::add(x, cleared(dy)); });
}

#define ASSAY_INSTANTIATE(T) template struct Moves<T>;
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
