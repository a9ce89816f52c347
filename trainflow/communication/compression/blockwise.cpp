// Blockwise quantisation of gradients, and sums of what was quantised. One thread; no allocation.
//
// Elements come in blocks of `block` (the last may be shorter), each with one fp32 scale. What is
// done to an element is a fixed sequence of IEEE operations, rounded to nearest even and never
// contracted: every machine, and the slower tier in torch, gets the same bits.
//
// Built with -O3 -march=native -ffp-contract=off. Never with -ffast-math: it removes tests for NaN.

#include <cstdint>
#include <cstring>

#include "streaming.hpp"

namespace {

constexpr std::int64_t kMaxBlock = 4096;
constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;
constexpr float kTiny = 1e-30f;        // below, top / absmax would overflow: the block is zero
constexpr float kHuge = 1e38f;         // above, a scale that was rounded up decodes to infinity
constexpr float kShrink = 0.9999998f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
constexpr std::int32_t kMagicBits = 0x4b400000;

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// As integers, magnitudes order as floats do, with infinity and NaN on top: no NaN is lost.
inline std::uint32_t absmax_bits(const float* __restrict values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = bits_of(values[i]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// As absmax_bits, of a + b, which goes to `sums`.
inline std::uint32_t add_absmax_bits(const float* __restrict a, const float* __restrict b,
                                     std::int64_t count, float* __restrict sums) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] = a[i] + b[i];
    const std::uint32_t magnitude = bits_of(sums[i]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// To the nearest integer, ties to even; |value| at most 2^21.
inline std::int32_t round_even(float value) {
  return static_cast<std::int32_t>(bits_of(value + kMagic)) - kMagicBits;
}

// One code a byte. A `Number` says which: `code_of` a float of at most its `kTop` and `value_of`.
template <typename Number>
struct ByteCode {
  static constexpr float kTop = Number::kTop;
  static constexpr std::uint8_t kZeros = 0;
  static constexpr std::int64_t bytes(std::int64_t count) { return count; }

  static void encode(const float* __restrict values, std::int64_t count, float factor,
                     std::uint8_t* __restrict codes) {
    for (std::int64_t i = 0; i < count; ++i) codes[i] = Number::code_of(values[i] * factor);
  }
  // What the codes leave out goes to `rest`.
  static void encode(const float* __restrict values, std::int64_t count, float factor,
                     std::uint8_t* __restrict codes, float scale, float* __restrict rest) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t code = Number::code_of(values[i] * factor);
      codes[i] = code;
      rest[i] = values[i] - Number::value_of(code) * scale;
    }
  }
  static void decode(const std::uint8_t* __restrict codes, std::int64_t count, float scale,
                     float* __restrict values) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = Number::value_of(codes[i]) * scale;
  }
  static void add(const std::uint8_t* __restrict codes, std::int64_t count, float scale,
                  float* __restrict sums) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += Number::value_of(codes[i]) * scale;
  }
};

struct Int8Number {
  static constexpr float kTop = 127.0f;

  static std::uint8_t code_of(float value) { return static_cast<std::uint8_t>(round_even(value)); }
  static float value_of(std::uint8_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
};
using Int8 = ByteCode<Int8Number>;

// Two codes a byte, the earlier element in the low half, each 8 more than its value.
struct Int4 {
  static constexpr float kTop = 7.0f;
  static constexpr std::uint8_t kZeros = 0x88;
  static constexpr std::int64_t bytes(std::int64_t count) { return (count + 1) / 2; }

  static void encode(const float* __restrict values, std::int64_t count, float factor,
                     std::uint8_t* __restrict codes) {
    alignas(64) std::uint8_t wide[kMaxBlock + 2];
    for (std::int64_t i = 0; i < count; ++i)
      wide[i] = static_cast<std::uint8_t>(round_even(values[i] * factor) + 8);
    narrow(wide, count, codes);
  }
  static void encode(const float* __restrict values, std::int64_t count, float factor,
                     std::uint8_t* __restrict codes, float scale, float* __restrict rest) {
    alignas(64) std::uint8_t wide[kMaxBlock + 2];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t code = round_even(values[i] * factor);
      wide[i] = static_cast<std::uint8_t>(code + 8);
      rest[i] = values[i] - static_cast<float>(code) * scale;
    }
    narrow(wide, count, codes);
  }
  static void decode(const std::uint8_t* __restrict codes, std::int64_t count, float scale,
                     float* __restrict values) {
    alignas(64) std::int8_t wide[kMaxBlock + 2];
    widen(codes, count, wide);
    for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(wide[i]) * scale;
  }
  static void add(const std::uint8_t* __restrict codes, std::int64_t count, float scale,
                  float* __restrict sums) {
    alignas(64) std::int8_t wide[kMaxBlock + 2];
    widen(codes, count, wide);
    for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<float>(wide[i]) * scale;
  }

 private:
  static void narrow(std::uint8_t* __restrict wide, std::int64_t count,
                     std::uint8_t* __restrict codes) {
    wide[count] = 8;
    const std::int64_t pairs = bytes(count);
    for (std::int64_t i = 0; i < pairs; ++i)
      codes[i] = static_cast<std::uint8_t>(wide[2 * i] | (wide[2 * i + 1] << 4));
  }
  static void widen(const std::uint8_t* __restrict codes, std::int64_t count,
                    std::int8_t* __restrict wide) {
    const std::int64_t pairs = bytes(count);
    for (std::int64_t i = 0; i < pairs; ++i) {
      wide[2 * i] = static_cast<std::int8_t>((codes[i] & 15) - 8);
      wide[2 * i + 1] = static_cast<std::int8_t>((codes[i] >> 4) - 8);
    }
  }
};

// Floats of 8 bits: sign, exponent of four with a bias of 7, mantissa of three; no infinity. Below
// 2^-6 they are multiples of 2^-9.
struct Fp8Number {
  static constexpr float kTop = 448.0f;

  static std::uint8_t code_of(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t magnitude = bits & kMagnitude;
    const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    const std::uint32_t normal = (rounded >> 20) - kRebias;
    const auto small = static_cast<std::uint32_t>(round_even(float_of(magnitude) * 512.0f));
    const std::uint32_t code = magnitude < kSmallestNormal ? small : normal;
    return static_cast<std::uint8_t>(code | ((bits >> 24) & 0x80u));
  }
  static float value_of(std::uint32_t code) {
    const std::uint32_t magnitude = code & 0x7fu;
    const std::uint32_t normal = (magnitude + kRebias) << 20;
    // 2^-6 (1 + magnitude / 8), less 2^-6: exact, and no conversion, which compilers do one by one
    const float small = float_of(kSmallestNormal + (magnitude << 20)) - float_of(kSmallestNormal);
    const std::uint32_t sign = (code & 0x80u) << 24;
    return float_of((magnitude < 8u ? bits_of(small) : normal) | sign);
  }

 private:
  static constexpr std::uint32_t kRebias = 120u << 3;
  static constexpr std::uint32_t kSmallestNormal = 0x3c800000u;  // 2^-6
};
using Fp8 = ByteCode<Fp8Number>;

struct Scale {
  float decode;
  float encode;
};

inline Scale scale_of(std::uint32_t largest, float top) {
  const float absmax = float_of(largest);
  if (largest >= kInfinity || absmax < kTiny) return {0.0f, 0.0f};
  const float decode = absmax / top;
  return {absmax > kHuge ? decode * kShrink : decode, top / absmax};
}

// Encodes one block; false if it holds what is not finite: it then stands for zeros.
template <typename Code>
inline bool encode_block(const float* values, std::int64_t count, std::uint8_t* codes,
                         float* scale) {
  const std::uint32_t largest = absmax_bits(values, count);
  const Scale by = scale_of(largest, Code::kTop);
  *scale = by.decode;
  if (by.encode == 0.0f) {
    std::memset(codes, Code::kZeros, static_cast<std::size_t>(Code::bytes(count)));
  } else {
    Code::encode(values, count, by.encode, codes);
  }
  return largest < kInfinity;
}

// Calls `visit(start, size, number)` for each block.
template <typename Visit>
inline void each_block(std::int64_t count, std::int64_t block, Visit visit) {
  std::int64_t number = 0;
  for (std::int64_t start = 0; start < count; start += block, ++number)
    visit(start, count - start < block ? count - start : block, number);
}

template <typename Code>
int encode(const float* values, std::int64_t count, std::int64_t block, std::uint8_t* codes,
           float* scales) {
  bool finite = true;
  each_block(count, block, [&](std::int64_t start, std::int64_t size, std::int64_t number) {
    finite &= encode_block<Code>(values + start, size, codes + Code::bytes(start), scales + number);
  });
  return finite;
}

// As encode, of values plus what was left of them before; what is left now goes to `left`.
template <typename Code>
int encode_with_feedback(const float* values, const float* residual, std::int64_t count,
                         std::int64_t block, std::uint8_t* codes, float* scales, float* left) {
  bool finite = true;
  alignas(64) float wanted[kMaxBlock];
  alignas(64) float rest[kMaxBlock];
  each_block(count, block, [&](std::int64_t start, std::int64_t size, std::int64_t number) {
    prefetch(values + start, size);
    prefetch(residual + start, size);
    const std::uint32_t largest =
        add_absmax_bits(values + start, residual + start, size, wanted);
    const Scale by = scale_of(largest, Code::kTop);
    std::uint8_t* own = codes + Code::bytes(start);
    scales[number] = by.decode;
    if (by.encode == 0.0f) {  // a residual below kTiny would stay for ever
      std::memset(own, Code::kZeros, static_cast<std::size_t>(Code::bytes(size)));
      std::memset(rest, 0, static_cast<std::size_t>(size) * sizeof(float));
    } else {
      Code::encode(wanted, size, by.encode, own, by.decode, rest);
    }
    finite &= largest < kInfinity;
    stream(rest, size, left + start);  // read again one step later
  });
  end_streams();
  return finite;
}

template <typename Code>
void decode(const std::uint8_t* codes, const float* scales, std::int64_t count, std::int64_t block,
            float* values) {
  each_block(count, block, [&](std::int64_t start, std::int64_t size, std::int64_t number) {
    Code::decode(codes + Code::bytes(start), size, scales[number], values + start);
  });
}

template <typename Code>
void decode_add(const std::uint8_t* codes, const float* scales, std::int64_t count,
                std::int64_t block, float* sums) {
  each_block(count, block, [&](std::int64_t start, std::int64_t size, std::int64_t number) {
    Code::add(codes + Code::bytes(start), size, scales[number], sums + start);
  });
}

// Sums `ranks` messages in their order and encodes the sum, block by block in cache. Message r has
// its codes and scales `stride` bytes after those of message r - 1. What the codes leave out of the
// sum is added to `left`, unless that is null.
template <typename Code>
int reduce_encode(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t ranks,
                  std::int64_t stride, std::int64_t count, std::int64_t block,
                  std::uint8_t* out_codes, float* out_scales, float* left) {
  bool finite = true;
  alignas(64) float sums[kMaxBlock];
  alignas(64) float sent[kMaxBlock];
  each_block(count, block, [&](std::int64_t start, std::int64_t size, std::int64_t number) {
    const std::int64_t at = Code::bytes(start);
    const auto scale = [&](std::int64_t rank) {
      return reinterpret_cast<const float*>(scales + rank * stride)[number];
    };
    Code::decode(codes + at, size, scale(0), sums);
    for (std::int64_t rank = 1; rank < ranks; ++rank)
      Code::add(codes + rank * stride + at, size, scale(rank), sums);
    finite &= encode_block<Code>(sums, size, out_codes + at, out_scales + number);
    if (left != nullptr && out_scales[number] != 0.0f) {
      Code::decode(out_codes + at, size, out_scales[number], sent);
      for (std::int64_t i = 0; i < size; ++i) left[start + i] += sums[i] - sent[i];
    }
  });
  return finite;
}

}  // namespace

// The same five functions for each code, with C linkage.
#define EXPORT(name, Code)                                                                        \
  extern "C" int encode_##name(const float* values, std::int64_t count, std::int64_t block,       \
                               std::uint8_t* codes, float* scales) {                              \
    return encode<Code>(values, count, block, codes, scales);                                     \
  }                                                                                               \
  extern "C" int encode_with_feedback_##name(const float* values, const float* residual,          \
                                             std::int64_t count, std::int64_t block,              \
                                             std::uint8_t* codes, float* scales, float* left) {   \
    return encode_with_feedback<Code>(values, residual, count, block, codes, scales, left);       \
  }                                                                                               \
  extern "C" void decode_##name(const std::uint8_t* codes, const float* scales,                   \
                                std::int64_t count, std::int64_t block, float* values) {          \
    decode<Code>(codes, scales, count, block, values);                                            \
  }                                                                                               \
  extern "C" void decode_add_##name(const std::uint8_t* codes, const float* scales,               \
                                    std::int64_t count, std::int64_t block, float* sums) {        \
    decode_add<Code>(codes, scales, count, block, sums);                                          \
  }                                                                                               \
  extern "C" int reduce_encode_##name(const std::uint8_t* codes, const std::uint8_t* scales,      \
                                      std::int64_t ranks, std::int64_t stride,                    \
                                      std::int64_t count, std::int64_t block,                     \
                                      std::uint8_t* out_codes, float* out_scales, float* left) {  \
    return reduce_encode<Code>(codes, scales, ranks, stride, count, block, out_codes, out_scales, \
                               left);                                                             \
  }

EXPORT(int8, Int8)
EXPORT(int4, Int4)
EXPORT(fp8, Fp8)
