// Softmax over the scores of a block, with a running largest score and sum.
#pragma once

#include "attention.h"
#include "tile.h"

namespace plx::PLX_ISA {
namespace {

constexpr float kNever = -INFINITY;

// Turns raw scores into those of the softmax: capped, and never for keys that the query does not see.
PLX_INLINE void mask_scores(const Attention& a, const KeyBlock& block, float* scores, int64_t position) {
  const int64_t keys = round_up(block.count);
  const int64_t oldest = a.window ? position - a.window + 1 - block.begin : 0;
  const int64_t newest = position - block.begin + 1, seen = least(newest, block.count);
  if (a.cap > 0) {
    for (int64_t i = 0; i < keys; i += kLanes) save(scores + i, hyperbolic_tangent(load(scores + i) / a.cap) * a.cap);
  }
  for (int64_t i = 0; i < oldest && i < keys; ++i) scores[i] = kNever;
  for (int64_t i = seen < 0 ? 0 : seen; i < keys; ++i) scores[i] = kNever;
}

PLX_INLINE float find_most(const float* scores, int64_t keys, float most) {
  Floats reach = splat(most);
  for (int64_t i = 0; i < keys; i += kLanes) reach = larger(load(scores + i), reach);
  return largest(reach);
}

// Notes that a query sees no number in a block; if it sees what is none, its results are none.
PLX_INLINE void skip_block(const State& state, int64_t q, const float* scores, int64_t keys) {
  for (int64_t i = 0; i < keys; ++i) state.total[q] = scores[i] == scores[i] ? state.total[q] : NAN;
}

// Turns the scores of a query into weights; returns the factor for the values so far.
float weigh(const Attention& a, const KeyBlock& block, const State& state, int64_t q, int64_t position) {
  const int64_t keys = round_up(block.count);
  float* const scores = state.scores + q * state.block;
  mask_scores(a, block, scores, position);
  const float most = find_most(scores, keys, state.most[q]);
  if (most == kNever) {
    skip_block(state, q, scores, keys);
    memset(scores, 0, static_cast<size_t>(keys * kFloatBytes));
    return 1.0f;
  }
  Floats total = splat(0.0f);
  for (int64_t i = 0; i < keys; i += kLanes) {
    const Floats weight = exponential(load(scores + i) - most);
    save(scores + i, weight);
    total += weight;
  }
  const float decay = state.most[q] == most ? 1.0f : exponential(splat(state.most[q] - most))[0];
  state.total[q] = state.total[q] * decay + sum(total);
  state.most[q] = most;
  return decay;
}

#if defined(PLX_PAIRS)
#if defined(PLX_BFMMLA)
PLX_INLINE Floats raise_roughly(Floats x) { return exponential(x); }

PLX_INLINE void save_bfloat16(uint16_t* out, Floats x) {
  uint16x8_t halves;
  asm("bfcvtn %0.4h, %1.4s" : "=w"(halves) : "w"(x));
  vst1_u16(out, vget_low_u16(halves));
}
#else
// Returns e^x of numbers up to 0 or NaN = 2^n * 2^r with |r| <= 1/2 and the Taylor series of 2^r to r^4 (relative error 5e-5, a
// fortieth of the rounding to bfloat16). Below -200 the result is 0.
PLX_INLINE Floats raise_roughly(Floats raised) {
  const __m512 x = reinterpret_cast<__m512>(raised);
  const __m512 power = _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(-200.0f), x), _mm512_set1_ps(1.44269504088896341f));
  const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(power, whole);
  __m512 found = _mm512_set1_ps(9.61812911e-3f);
  found = _mm512_fmadd_ps(found, rest, _mm512_set1_ps(5.55041087e-2f));
  found = _mm512_fmadd_ps(found, rest, _mm512_set1_ps(2.40226507e-1f));
  found = _mm512_fmadd_ps(found, rest, _mm512_set1_ps(6.93147181e-1f));
  found = _mm512_fmadd_ps(found, rest, _mm512_set1_ps(1.0f));
  return reinterpret_cast<Floats>(_mm512_scalef_ps(found, whole));
}

PLX_INLINE void save_bfloat16(uint16_t* out, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x))));
}
#endif

// Does the same as `weigh`, and rounds the weights to bfloat16, which take the first half of the scores' memory.
float weigh_pairs(const Attention& a, const KeyBlock& block, const State& state, int64_t q, int64_t position) {
  const int64_t keys = round_up(block.count);
  float* const scores = state.scores + q * state.block;
  mask_scores(a, block, scores, position);
  const float most = find_most(scores, keys, state.most[q]);
  if (most == kNever) {
    skip_block(state, q, scores, keys);
    memset(scores, 0, static_cast<size_t>(keys * kHalfBytes));
    return 1.0f;
  }
  uint16_t* const weights = reinterpret_cast<uint16_t*>(scores);
  Floats total = splat(0.0f);
  for (int64_t i = 0; i < keys; i += kLanes) {
    const Floats weight = raise_roughly(load(scores + i) - most);
    save_bfloat16(weights + i, weight);
    total += weight;
  }
  const float decay = state.most[q] == most ? 1.0f : raise_roughly(splat(state.most[q] - most))[0];
  state.total[q] = state.total[q] * decay + sum(total);
  state.most[q] = most;
  return decay;
}
#endif

}  // namespace
}  // namespace plx::PLX_ISA
