// Stores that pass by the cache, for what is read again only one step later: an ordinary store
// would first fetch what it writes over.

#pragma once

#include <cstdint>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

// Copies to memory that is not read soon; `from` lies at a multiple of 32 bytes.
inline void stream(const float* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
#ifdef __AVX__
  if (reinterpret_cast<std::uintptr_t>(to) % 32 == 0)
    for (; i + 8 <= count; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
#endif
  for (; i < count; ++i) to[i] = from[i];
}

// To be called at the end of a function that streams.
inline void end_streams() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

// Asks for what is read soon: hardware is slow to follow several arrays at once.
inline void prefetch(const float* values, std::int64_t count) {
  constexpr std::int64_t kAhead = 1024;
  for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(values + i + kAhead);
}

}  // namespace
