// What the kernels do with vectors: reductions, 16-bit numbers and the exponential function.
#pragma once

#include <cmath>

#include "vector.h"

#if defined(PLX_NEON)
#include "neon.h"
#endif

namespace plx::PLX_ISA {
namespace {

// Returns a bit for each lane of a comparison, the first lane lowest.
PLX_INLINE uint32_t true_lanes(Ints is_true) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(is_true));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(is_true)));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(is_true[lane] != 0) << lane;
  return bits;
#endif
}

// Reductions combine the lanes of a vector by halves: the upper eight with the lower eight, then four, two and one. So a sum
// does not depend on the number of lanes.
#if defined(__AVX2__)
#if defined(__AVX512F__)
PLX_INLINE __m256 lower_half(Floats v) { return _mm512_castps512_ps256(reinterpret_cast<__m512>(v)); }
PLX_INLINE __m256 upper_half(Floats v) { return _mm512_extractf32x8_ps(reinterpret_cast<__m512>(v), 1); }
PLX_INLINE __m256 add_halves(Floats v) { return _mm256_add_ps(lower_half(v), upper_half(v)); }
PLX_INLINE __m256 larger_half(Floats v) { return _mm256_max_ps(lower_half(v), upper_half(v)); }
#else
PLX_INLINE __m256 add_halves(Floats v) { return reinterpret_cast<__m256>(v); }
PLX_INLINE __m256 larger_half(Floats v) { return reinterpret_cast<__m256>(v); }
#endif

PLX_INLINE float sum(Floats v) {
  const __m256 eight = add_halves(v);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

PLX_INLINE float largest(Floats v) {
  const __m256 eight = larger_half(v);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#elif !defined(PLX_NEON)
PLX_INLINE float sum(Floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

PLX_INLINE float largest(Floats v) {
  float most = v[0];
  for (int i = 1; i < kLanes; ++i) most = v[i] > most ? v[i] : most;
  return most;
}
#endif

// Two neighbouring bfloat16 are one word, with the first in its lower half.
PLX_INLINE Floats widen_even(Words pairs) { return as_floats(pairs << 16); }
PLX_INLINE Floats widen_odd(Words pairs) { return as_floats(pairs & 0xffff0000u); }

PLX_INLINE float widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

// Returns kLanes bfloat16 in order, each in the upper half of a word.
PLX_INLINE Words widen_bfloat16(const char* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
#elif defined(PLX_NEON)
  return vshll_n_u16(vreinterpret_u16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p))), 16);
#else
  uint16_t bits[kLanes];
  memcpy(bits, p, sizeof bits);
  Words out;
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<uint32_t>(bits[i]) << 16;
  return out;
#endif
}

// Returns kLanes pairs of bfloat16, the first of a pair from `first`.
PLX_INLINE Floats join_bfloat16(const char* first, const char* second) {
  return as_floats(widen_bfloat16(first) >> 16 | widen_bfloat16(second));
}

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
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

#if !defined(PLX_NEON)
PLX_INLINE Floats load_halves(const void* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#else
  uint16_t bits[kLanes];
  memcpy(bits, p, sizeof bits);
  Floats out;
  for (int i = 0; i < kLanes; ++i) out[i] = half_one(bits[i]);
  return out;
#endif
}
#endif

// Returns e^x = 2^n * e^r with |r| <= ln 2 / 2 and the Taylor series of e^r to r^7 (relative error 5e-9, less than the rounding
// of the sums). Below -87 the result is 0, above 88 infinite.
PLX_INLINE Floats exponential(Floats x) {
  const Floats kept = smaller(splat(88.0f), larger(splat(-87.0f), x));  // NaN stays NaN
  const Floats rounder = splat(kRounder);
  const Floats shifted = kept * 1.44269504088896341f + rounder;
  const Floats n = shifted - rounder;
  Floats r = kept - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  const Floats value = reinterpret_cast<Floats>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  const Ints power = (__builtin_convertvector(x == x ? n : splat(0.0f), Ints) + 127) << 23;
  const Floats value = p * reinterpret_cast<Floats>(power);
#endif
  const Floats raised = x > 88.0f ? splat(INFINITY) : value;
  return x < -87.0f ? splat(0.0f) : raised;
}

PLX_INLINE Floats hyperbolic_tangent(Floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

}  // namespace
}  // namespace plx::PLX_ISA
