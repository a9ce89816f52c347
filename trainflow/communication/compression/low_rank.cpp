// What PowerSGD does to whole gradients. One thread; each value is read from memory once.
//
// Built with -O3 -march=native -ffp-contract=off: each operation is rounded by itself, in a fixed
// order, so that every machine gets the same bits.

#include <cmath>
#include <cstring>

#include "streaming.hpp"

namespace {

constexpr std::int64_t kRun = 256;
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kRows = 2;       // that share what is loaded of a factor
constexpr std::int64_t kColumns = 1024; // whose sums stay in the nearest cache
constexpr std::int64_t kSums = 4096;    // of which a product of two columns is made
constexpr float kLeast = 0x1p-20f;      // of a column's length, must lie outside of the others

// Products of some rows of the matrix, from `m` on, with one column of Q; what comes of a row
// doesn't depend on the others.
template <std::int64_t kTogether>
inline void dot_rows(const float* m, std::int64_t columns, const float* q, float* sums) {
  float lanes[kTogether][kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes)
    for (std::int64_t row = 0; row < kTogether; ++row)
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        lanes[row][lane] += m[row * columns + j + lane] * q[j + lane];
  for (std::int64_t row = 0; row < kTogether; ++row) {
    for (std::int64_t half = kLanes / 2; half; half /= 2)
      for (std::int64_t lane = 0; lane < half; ++lane) lanes[row][lane] += lanes[row][lane + half];
    sums[row] = lanes[row][0];
    for (std::int64_t rest = j; rest < columns; ++rest)
      sums[row] += m[row * columns + rest] * q[rest];
  }
}

// Element i goes to the sum i modulo kSums; these are folded, the second half onto the first.
inline float dot(const float* a, const float* b, std::int64_t count) {
  alignas(64) float sums[kSums] = {};
  for (std::int64_t start = 0; start < count; start += kSums) {
    const std::int64_t size = count - start < kSums ? count - start : kSums;
    for (std::int64_t i = 0; i < size; ++i) sums[i] += a[start + i] * b[start + i];
  }
  for (std::int64_t size = count < kSums ? count : kSums, half; size > 1; size = half) {
    half = (size + 1) / 2;
    for (std::int64_t i = 0; i < size - half; ++i) sums[i] += sums[half + i];
  }
  return sums[0];
}

// Divides a column by its largest magnitude, or squares would overflow, or vanish.
inline void scale(float* column, std::int64_t count) {
  std::int32_t most = 0; // without their sign, numbers are in the order of their bits
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, column + i, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  if (most == 0) return;
  float largest;
  std::memcpy(&largest, &most, sizeof largest);
  for (std::int64_t i = 0; i < count; ++i) column[i] /= largest;
}

// Takes from a column what lies along those before it. `factors` has room for one of each.
inline void leave_outside(const float* before, std::int64_t num_before, std::int64_t count,
                          float* factors, float* column) {
  for (std::int64_t j = 0; j < num_before; ++j)
    factors[j] = dot(before + j * count, column, count);
  for (std::int64_t start = 0; start < count; start += kColumns) {
    const std::int64_t end = count - start < kColumns ? count : start + kColumns;
    for (std::int64_t j = 0; j < num_before; ++j)
      for (std::int64_t i = start; i < end; ++i) column[i] -= factors[j] * before[j * count + i];
  }
}

}  // namespace

// Makes the columns of P orthonormal, from `first` on, by Gram-Schmidt, each twice: once leaves
// rounding errors along the others. Pt is rank x rows, row by row. Returns the first column of
// which hardly anything lies outside of those before, or rank; that column then holds garbage.
extern "C" std::int64_t orthonormalise(float* pt, std::int64_t rows, std::int64_t rank,
                                       std::int64_t first, float* factors) {
  for (std::int64_t k = first; k < rank; ++k) {
    float* column = pt + k * rows;
    scale(column, rows);
    const float before = std::sqrt(dot(column, column, rows));
    for (int turn = 0; turn < 2; ++turn) leave_outside(pt, k, rows, factors, column);
    const float length = std::sqrt(dot(column, column, rows));
    if (length <= kLeast * before) return k; // not so, if one of them is NaN
    for (std::int64_t i = 0; i < rows; ++i) column[i] /= length;
  }
  return rank;
}

// P = M Q. M is rows x columns, P rows x rank, Qt rank x columns, all row by row.
extern "C" void project(const float* m, const float* qt, std::int64_t rows, std::int64_t columns,
                        std::int64_t rank, float* p) {
  std::int64_t row = 0;
  float sums[kRows];
  for (; row + kRows <= rows; row += kRows)
    for (std::int64_t k = 0; k < rank; ++k) {
      dot_rows<kRows>(m + row * columns, columns, qt + k * columns, sums);
      for (std::int64_t r = 0; r < kRows; ++r) p[(row + r) * rank + k] = sums[r];
    }
  for (; row < rows; ++row)
    for (std::int64_t k = 0; k < rank; ++k)
      dot_rows<1>(m + row * columns, columns, qt + k * columns, p + row * rank + k);
}

// Qt = Pt M, summed from the first row on; Qt is rank x columns.
extern "C" void project_back(const float* m, const float* p, std::int64_t rows,
                             std::int64_t columns, std::int64_t rank, float* qt) {
  for (std::int64_t start = 0; start < columns; start += kColumns) {
    const std::int64_t size = columns - start < kColumns ? columns - start : kColumns;
    for (std::int64_t k = 0; k < rank; ++k)
      for (std::int64_t j = 0; j < size; ++j) qt[k * columns + start + j] = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* values = m + row * columns + start;
      for (std::int64_t k = 0; k < rank; ++k) {
        const float factor = p[row * rank + k];
        float* sums = qt + k * columns + start;
        for (std::int64_t j = 0; j < size; ++j) sums[j] += values[j] * factor;
      }
    }
  }
}

// sums[i] = a[i] + b[i]
extern "C" void add_into(const float* a, const float* b, std::int64_t count, float* sums) {
  alignas(64) float run[kRun];
  for (std::int64_t start = 0; start < count; start += kRun) {
    const std::int64_t size = count - start < kRun ? count - start : kRun;
    prefetch(a + start, size);
    prefetch(b + start, size);
    for (std::int64_t i = 0; i < size; ++i) run[i] = a[start + i] + b[start + i];
    stream(run, size, sums + start);
  }
  end_streams();
}

// result = P Qt, by rank from the first on, and wanted -= share * result, unless that is null.
// P is rows x rank, Qt rank x columns, both row by row.
extern "C" void expand(const float* p, const float* qt, std::int64_t rows, std::int64_t columns,
                       std::int64_t rank, float share, float* result, float* wanted) {
  alignas(64) float product[kRun];
  alignas(64) float rest[kRun];
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* factors = p + row * rank;
    for (std::int64_t start = 0; start < columns; start += kRun) {
      const std::int64_t size = columns - start < kRun ? columns - start : kRun;
      const std::int64_t at = row * columns + start;
      for (std::int64_t i = 0; i < size; ++i) product[i] = factors[0] * qt[start + i];
      for (std::int64_t k = 1; k < rank; ++k)
        for (std::int64_t i = 0; i < size; ++i)
          product[i] += factors[k] * qt[k * columns + start + i];
      stream(product, size, result + at);
      if (wanted == nullptr) continue;
      prefetch(wanted + at, size);
      for (std::int64_t i = 0; i < size; ++i) rest[i] = wanted[at + i] - share * product[i];
      stream(rest, size, wanted + at);
    }
  }
  end_streams();
}
