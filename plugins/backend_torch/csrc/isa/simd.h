// Eight floats at a time, in the vector extensions that GCC and Clang share; what these cannot say well is said once for
// AVX2 and once for everything. All names have internal linkage: the same source is compiled for several processors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../kernels.h"

namespace plx::PLX_ISA {
namespace {

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef float F8Loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t U8Loose __attribute__((vector_size(32), aligned(2), may_alias));

#define PLX_INLINE static inline __attribute__((always_inline, unused))

PLX_INLINE F8 load(const float* p) { return *reinterpret_cast<const F8Loose*>(p); }
PLX_INLINE void save(float* p, F8 v) { *reinterpret_cast<F8Loose*>(p) = v; }
PLX_INLINE F8 splat(float x) { return F8{x, x, x, x, x, x, x, x}; }
PLX_INLINE F8 as_floats(U8 v) { return reinterpret_cast<F8>(v); }
PLX_INLINE F8 larger(F8 a, F8 b) { return a > b ? a : b; }
PLX_INLINE F8 smaller(F8 a, F8 b) { return a < b ? a : b; }

// The sums of some rows and the 16 outputs of a panel.
struct Sums {
  float* at;
  int64_t stride;  // between rows
};

PLX_INLINE float sum(F8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

PLX_INLINE float largest(F8 v) {
  float most = v[0];
  for (int i = 1; i < 8; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

// Two neighbouring bfloat16 are one word: the first is its lower half.
PLX_INLINE F8 widen_even(U8 pairs) { return as_floats(pairs << 16); }
PLX_INLINE F8 widen_odd(U8 pairs) { return as_floats(pairs & 0xffff0000u); }

PLX_INLINE float widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

// To the nearest bfloat16, ties to even; what is no number stays so.
PLX_INLINE uint16_t narrow_one(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  if (value != value) return static_cast<uint16_t>((word >> 16) | 0x40);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

PLX_INLINE float half_one(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const int exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 1023;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t word = sign | (exponent == 31 ? 0x7f800000u : static_cast<uint32_t>(exponent + 112) << 23) | mantissa << 13;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

PLX_INLINE F8 load_halves(const void* p) {
#if defined(__AVX2__)
  return reinterpret_cast<F8>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#else
  uint16_t bits[8];
  memcpy(bits, p, sizeof bits);
  F8 out;
  for (int i = 0; i < 8; ++i) out[i] = half_one(bits[i]);
  return out;
#endif
}

PLX_INLINE F8 to_floats(I8 v) { return __builtin_convertvector(v, F8); }

// e to the x: 2^n times a polynomial in what is left, |r| <= ln 2 / 2, which is the Taylor series to r^7 (error 5e-9
// relative, so the rounding of the sums dominates). Below -87 it is 0, above 88 infinite.
PLX_INLINE F8 exponential(F8 x) {
  const F8 kept = smaller(larger(x, splat(-87.0f)), splat(88.0f));
  const F8 magic = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to the nearest whole number
  const F8 shifted = kept * 1.44269504088896341f + magic;
  const F8 n = shifted - magic;
  F8 r = kept - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F8 p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const I8 power = (__builtin_convertvector(n, I8) + 127) << 23;
  const F8 value = p * reinterpret_cast<F8>(power);
  const F8 bounded = x < -87.0f ? splat(0.0f) : x > 88.0f ? splat(INFINITY) : value;
  return x == x ? bounded : x;
}

PLX_INLINE F8 hyperbolic_tangent(F8 x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

}  // namespace
}  // namespace plx::PLX_ISA
