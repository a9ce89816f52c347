// Selection of a gradient's largest elements. One thread; no allocation.
//
// Built with -O3 -march=native -ffp-contract=off. Never with -ffast-math: it removes tests for NaN.

#include <cstdint>
#include <cstring>

#include "streaming.hpp"

namespace {

constexpr std::int64_t kRun = 16;  // at one element in a hundred most runs have none
constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;

inline std::uint32_t magnitude_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & kMagnitude;
}

struct Selected {
  std::int32_t* indices;
  float* values;
  std::int64_t count;
  std::int64_t room;
};

// Adds values[i] + kept[i] for a run to `wanted`; returns the largest magnitude, as an integer:
// they order as floats do, with infinity and NaN on top.
template <std::int64_t kSize>
inline std::uint32_t add_run(const float* __restrict values, const float* __restrict kept,
                             std::int64_t size, float* __restrict wanted) {
  std::uint32_t largest = 0;
  const std::int64_t count = kSize > 0 ? kSize : size;
  for (std::int64_t i = 0; i < count; ++i) {
    wanted[i] = values[i] + kept[i];
    const std::uint32_t magnitude = magnitude_of(wanted[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

inline void take(float* wanted, std::int64_t size, std::int64_t start, std::uint32_t threshold,
                 Selected* selected) {
  for (std::int64_t i = 0; i < size; ++i) {
    if (magnitude_of(wanted[i]) < threshold || selected->count == selected->room) continue;
    selected->indices[selected->count] = static_cast<std::int32_t>(start + i);
    selected->values[selected->count] = wanted[i];
    ++selected->count;
    wanted[i] = 0.0f;
  }
}

}  // namespace

// Of values + kept, moves elements of at least `threshold` to `indices` and `selected`, the first
// `room` of them; `left` gets the rest, with zeros in their places, and `values` becomes zero.
// Returns how many were moved; -1 if some are not finite: nothing that was written counts then.
extern "C" std::int64_t select_largest(float* values, const float* kept, std::int64_t count,
                                       float threshold, std::int32_t* indices, float* selected,
                                       std::int64_t room, float* left) {
  Selected taken{indices, selected, 0, room};
  const std::uint32_t from = magnitude_of(threshold);
  std::uint32_t largest = 0;
  alignas(64) float wanted[kRun];
  alignas(64) const float zeros[kRun] = {};
  for (std::int64_t start = 0; start < count; start += kRun) {
    const std::int64_t size = count - start < kRun ? count - start : kRun;
    prefetch(values + start, size);
    prefetch(kept + start, size);
    const std::uint32_t top = size == kRun
                                  ? add_run<kRun>(values + start, kept + start, size, wanted)
                                  : add_run<0>(values + start, kept + start, size, wanted);
    largest = top > largest ? top : largest;
    if (top >= from) take(wanted, size, start, from, &taken);
    stream(wanted, size, left + start);
    stream(zeros, size, values + start);
  }
  end_streams();
  return largest < kInfinity ? taken.count : -1;
}

// sums[indices[i]] += values[i]
extern "C" void add_selected(const std::int32_t* indices, const float* values, std::int64_t count,
                             float* sums) {
  for (std::int64_t i = 0; i < count; ++i) sums[indices[i]] += values[i];
}
