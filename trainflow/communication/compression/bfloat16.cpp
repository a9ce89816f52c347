// Sums in bfloat16: the upper half of an fp32, rounded to nearest, ties to even. Infinity and NaN
// stay what they are.
//
// Built by build.py, called by bfloat16.py. Pointers are to contiguous memory of `count` elements.

#include <cstdint>
#include <cstring>

#include "streaming.hpp"

namespace {

constexpr std::int64_t kBlock = 4096;  // what is between two passes stays in cache

inline std::uint16_t code_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

inline float value_of(std::uint16_t code) {
  const std::uint32_t bits = static_cast<std::uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Calls `visit(start, size)` for each block.
template <typename Visit>
inline void each_block(std::int64_t count, Visit visit) {
  for (std::int64_t start = 0; start < count; start += kBlock)
    visit(start, count - start < kBlock ? count - start : kBlock);
}

}  // namespace

extern "C" void encode_bf16(const float* __restrict values, std::int64_t count,
                            std::uint16_t* __restrict codes) {
  for (std::int64_t i = 0; i < count; ++i) codes[i] = code_of(values[i]);
}

// As encode, of values plus what was left of them before; what is left now goes to `left`.
extern "C" void encode_with_feedback_bf16(const float* __restrict values,
                                          const float* __restrict residual, std::int64_t count,
                                          std::uint16_t* __restrict codes, float* left) {
  alignas(64) float rest[kBlock];
  each_block(count, [&](std::int64_t start, std::int64_t size) {
    prefetch(values + start, size);
    prefetch(residual + start, size);
    for (std::int64_t i = 0; i < size; ++i) {
      const float wanted = values[start + i] + residual[start + i];
      const std::uint16_t code = code_of(wanted);
      codes[start + i] = code;
      rest[i] = wanted - value_of(code);
    }
    stream(rest, size, left + start);  // read again one step later
  });
  end_streams();
}

extern "C" void decode_bf16(const std::uint16_t* __restrict codes, std::int64_t count,
                            float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = value_of(codes[i]);
}

extern "C" void decode_add_bf16(const std::uint16_t* __restrict codes, std::int64_t count,
                                float* __restrict sums) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += value_of(codes[i]);
}

// Sums `ranks` messages in their order and encodes the sum, block by block in cache. Message r has
// its codes `stride` bytes after those of message r - 1. What the codes leave out of the sum is
// added to `left`, unless that is null.
extern "C" void reduce_encode_bf16(const std::uint8_t* codes, std::int64_t ranks,
                                   std::int64_t stride, std::int64_t count,
                                   std::uint16_t* __restrict out_codes, float* __restrict left) {
  alignas(64) float sums[kBlock];
  each_block(count, [&](std::int64_t start, std::int64_t size) {
    const auto own = [&](std::int64_t rank) {
      return reinterpret_cast<const std::uint16_t*>(codes + rank * stride) + start;
    };
    decode_bf16(own(0), size, sums);
    for (std::int64_t rank = 1; rank < ranks; ++rank) decode_add_bf16(own(rank), size, sums);
    encode_bf16(sums, size, out_codes + start);
    if (left != nullptr)
      for (std::int64_t i = 0; i < size; ++i)
        left[start + i] += sums[i] - value_of(out_codes[start + i]);
  });
}
