// What PowerSGD does to whole gradients, apart from products with its factors. One thread.
//
// Built with -O3 -march=native -ffp-contract=off: each operation is rounded by itself, in a fixed
// order, so that every machine, and the slower tier in torch, gets the same bits.

#include "streaming.hpp"

namespace {

constexpr std::int64_t kRun = 256;

}  // namespace

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
