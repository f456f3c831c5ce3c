// Few queries of keys and values in bfloat16, which are read in place and not widened: queries and weights are rounded to
// bfloat16, and multiplied in pairs.
#pragma once

#include "attention.h"
#include "weigh.h"

#if defined(__AVX512BF16__)
namespace plx::PLX_ISA {
namespace {

PLX_INLINE void add_pair_product(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Returns the sum of each of sixteen vectors.
PLX_INLINE __m512 sum_each(const __m512 (&rows)[16]) {
  __m512 pairs[8], fours[4], eights[2];
  PLX_UNROLL for (int i = 0; i < 8; ++i) {
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]), _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
  }
  PLX_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  PLX_UNROLL for (int i = 0; i < 2; ++i) {
    const __m512 a = fours[2 * i], b = fours[2 * i + 1];
    eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88), _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd));
}

template <int Q>
void score_pairs(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first) {
  const char* const query = reinterpret_cast<const char*>(state.query) + first * state.width * kHalfBytes;
  for (int64_t key = 0; key < block.count; key += kPanel) {
    const char* rows[kPanel];  // the last key is repeated if fewer are left
    PLX_UNROLL for (int k = 0; k < kPanel; ++k) rows[k] = block.key(least(key + k, block.count - 1));
    PLX_UNROLL for (int q = 0; q < Q; ++q) {
      fetcher.advance(kPanel / Q);
      __m512 sums[kPanel] = {};
      for (int64_t at = 0; at < state.width * kHalfBytes; at += kCacheLine) {
        const __m512i part = _mm512_loadu_si512(query + q * state.width * kHalfBytes + at);
        PLX_UNROLL for (int k = 0; k < kPanel; ++k) add_pair_product(sums[k], part, _mm512_loadu_si512(rows[k] + at));
      }
      _mm512_storeu_ps(state.scores + (first + q) * state.block + key, sum_each(sums));
    }
  }
}

// Adds the weighted values of a block to N lines of the values of Q queries; a line has two vectors.
template <int Q, int N>
PLX_INLINE void add_pair_values(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first, const float* decay, int64_t at) {
  __m512 sums[Q][2 * N];
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    const float* const values = state.values + (first + q) * state.width + at;
    PLX_UNROLL for (int n = 0; n < 2 * N; ++n) sums[q][n] = _mm512_mul_ps(_mm512_loadu_ps(values + kLanes * n), _mm512_set1_ps(decay[q]));
  }
  for (int64_t key = 0; key < block.count; key += 2) {
    if (at == 0) fetcher.advance(2);
    const char* const rows[2] = {block.value(key) + at * kHalfBytes, block.value(least(key + 1, block.count - 1)) + at * kHalfBytes};
    __m512i weights[Q];
    PLX_UNROLL for (int q = 0; q < Q; ++q) {
      weights[q] = _mm512_set1_epi32(read_word(reinterpret_cast<const uint16_t*>(state.scores + (first + q) * state.block) + key));
    }
    PLX_UNROLL for (int n = 0; n < N; ++n) {
      const __m512i a = _mm512_loadu_si512(rows[0] + n * kCacheLine), b = _mm512_loadu_si512(rows[1] + n * kCacheLine);
      const __m512i parts[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
      PLX_UNROLL for (int q = 0; q < Q; ++q) {
        PLX_UNROLL for (int half = 0; half < 2; ++half) add_pair_product(sums[q][2 * n + half], parts[half], weights[q]);
      }
    }
  }
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    float* const values = state.values + (first + q) * state.width + at;
    PLX_UNROLL for (int n = 0; n < 2 * N; ++n) _mm512_storeu_ps(values + kLanes * n, sums[q][n]);
  }
}

struct FewPairs {
  static constexpr int64_t kItem = kHalfBytes;

  static void put_query(const float* from, float scale, int64_t dim, float* query) {
    uint16_t* const out = reinterpret_cast<uint16_t*>(query);
    for (int64_t i = 0; i < dim; ++i) out[i] = narrow_one(from[i] * scale);
  }

  static void attend(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
    int64_t q = 0;
    for (; q + 3 <= state.queries; q += 3) add_block<3>(a, task, block, fetcher, state, q);
    if (q + 2 == state.queries) add_block<2>(a, task, block, fetcher, state, q);
    if (q + 1 == state.queries) add_block<1>(a, task, block, fetcher, state, q);
  }

  static void restore_order(const State& state) {  // of the results: a line has first the lower halves of its quarters
    restore_places(state, [](int64_t i) { return i / 32 * 32 + i % 8 / 4 * 16 + i % 32 / 8 * 4 + i % 4; });
  }

 private:
  template <int Q>
  static void add_block(const Attention& a, const AttentionTask& task, const KeyBlock& block, Fetcher& fetcher, const State& state,
                        int64_t first) {
    const int64_t shared = a.heads / a.kv_heads;
    float decay[Q];
    score_pairs<Q>(block, fetcher, state, first);
    for (int q = 0; q < Q; ++q) decay[q] = weigh_pairs(a, block, state, first + q, task.position + (first + q) / shared);
    int64_t at = 0;
    for (; at + 4 * kLanes <= state.width; at += 4 * kLanes) add_pair_values<Q, 2>(block, fetcher, state, first, decay, at);
    if (at < state.width) add_pair_values<Q, 1>(block, fetcher, state, first, decay, at);
  }
};

}  // namespace
}  // namespace plx::PLX_ISA
#endif
