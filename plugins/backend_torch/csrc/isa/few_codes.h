// Few queries of keys and values in int8, which are read in place: queries, and the weights of a block of keys, are rounded to
// 15 bits, and all products are sums of integers, which are exact in any order.
#pragma once

#include "attention.h"
#include "weigh.h"

namespace plx::PLX_ISA {
namespace {

constexpr float kMostQuery = 16383, kMostWeight = 32767;
constexpr float kLeastCoded = 1e-34f;  // smaller numbers count as 0: those by which the most codes are divided

// The query of a head: codes of each number, and their scale. The codes are int16 [width]; with VNNI, whose products are of
// bytes, int8 [width] of their upper bits, then int8 [width] of the lower seven.
struct QueryCodes {
  int64_t width;
  char* data;  // 3 * width bytes at least

  int16_t* words() const { return reinterpret_cast<int16_t*>(data); }
  int8_t* upper() const { return reinterpret_cast<int8_t*>(data); }
  int8_t* lower() const { return upper() + width; }
  float* scale() const { return reinterpret_cast<float*>(data + 2 * width); }
  int32_t* total() const { return reinterpret_cast<int32_t*>(data + 2 * width) + 1; }  // of all codes
};

PLX_INLINE QueryCodes find_query(const State& state, int64_t q) {
  return {state.width, reinterpret_cast<char*>(state.query + q * state.width)};
}

struct Scales {  // of the keys and values of a block
  float keys[kFewKeys] = {}, values[kFewKeys] = {};

  Scales(const Attention& a, const KeyBlock& block) {
    const int64_t head = block.offset / a.dim;
    for (int64_t i = 0; i < block.count; ++i) {
      keys[i] = widen(a.key_scales[block.scales[i] + head]);
      values[i] = widen(a.value_scales[block.scales[i] + head]);
    }
  }
};

struct WeightCodes {  // of the keys of a block: codes of 15 bits, and the factor from a sum of products to a value
  int32_t codes[kFewKeys];
  uint16_t words[kFewKeys];
  uint8_t upper[kFewKeys], lower[kFewKeys];
  float factor;
};

// Rounds the weights of a block, times the scales of the values. The factor is NaN if any of them is.
void round_weights(const KeyBlock& block, const float* weights, const Scales& scales, WeightCodes& found) {
  float scaled[kFewKeys] = {};
  Floats reach = splat(0.0f), nothing = splat(0.0f);
  for (int64_t i = 0; i < round_up(block.count); i += kLanes) {
    const Floats weight = load(weights + i) * load(scales.values + i);
    save(scaled + i, weight);
    reach = larger(weight, reach);
    nothing += weight - weight;
  }
  const float most = largest(reach), strange = sum(nothing);
  const float inverse = most >= kLeastCoded && strange == 0 ? kMostWeight / most : 0.0f;
  for (int64_t i = 0; i < kFewKeys; ++i) found.codes[i] = static_cast<int32_t>(strange == 0 ? scaled[i] * inverse + 0.5f : 0.0f);
  for (int64_t i = 0; i < kFewKeys; ++i) {
    found.words[i] = static_cast<uint16_t>(found.codes[i]);
    found.upper[i] = static_cast<uint8_t>(found.codes[i] >> 8);
    found.lower[i] = static_cast<uint8_t>(found.codes[i]);
  }
  found.factor = most / kMostWeight + strange;
}

#if defined(__AVX512VNNI__)
PLX_INLINE __m512i load_codes(const char* row, int64_t left) {  // at most 64; the rest is 0
  if (left >= kCacheLine) return _mm512_loadu_si512(row);
  return _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, row);
}

// Returns the sum of each of four vectors.
PLX_INLINE __m128i sum_four(const __m512i (&rows)[4]) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
  const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Bytes are multiplied with and without a sign: 128 is added to the codes of keys, and its products are subtracted again.
template <int Q>
PLX_INLINE void multiply_keys(const char* const (&rows)[4], const State& state, int64_t first, int64_t dim, int32_t (&found)[Q][4]) {
  __m512i upper[Q][4] = {}, lower[Q][4] = {};
  for (int64_t at = 0; at < dim; at += kCacheLine) {
    __m512i keys[4];
    PLX_UNROLL for (int k = 0; k < 4; ++k) keys[k] = _mm512_xor_si512(load_codes(rows[k] + at, dim - at), _mm512_set1_epi8(-128));
    PLX_UNROLL for (int q = 0; q < Q; ++q) {
      const QueryCodes query = find_query(state, first + q);
      const __m512i high = _mm512_loadu_si512(query.upper() + at), low = _mm512_loadu_si512(query.lower() + at);
      PLX_UNROLL for (int k = 0; k < 4; ++k) add_quads(upper[q][k], keys[k], high);
      PLX_UNROLL for (int k = 0; k < 4; ++k) add_quads(lower[q][k], keys[k], low);
    }
  }
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    __m512i sums[4];
    PLX_UNROLL for (int k = 0; k < 4; ++k) sums[k] = _mm512_add_epi32(_mm512_slli_epi32(upper[q][k], 7), lower[q][k]);
    const __m128i extra = _mm_set1_epi32(128 * *find_query(state, first + q).total());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(found[q]), _mm_sub_epi32(sum_four(sums), extra));
  }
}

// Values of four keys are interleaved, so that a word has one number of each; so the sums of 64 numbers are in the order of
// `find_code_place`.
template <int Q>
PLX_INLINE void add_code_values(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first, const WeightCodes (&codes)[Q], const float* decay, int64_t at, int64_t dim) {
  __m512i upper[Q][4] = {}, lower[Q][4] = {};
  for (int64_t key = 0; key < block.count; key += 4) {
    if (at == 0) fetcher.advance(4);
    __m512i rows[4], pairs[4], quads[4];
    PLX_UNROLL for (int k = 0; k < 4; ++k) rows[k] = load_codes(block.value(least(key + k, block.count - 1)) + at, dim - at);
    PLX_UNROLL for (int k = 0; k < 2; ++k) {
      pairs[k] = _mm512_unpacklo_epi8(rows[2 * k], rows[2 * k + 1]);
      pairs[2 + k] = _mm512_unpackhi_epi8(rows[2 * k], rows[2 * k + 1]);
    }
    PLX_UNROLL for (int half = 0; half < 2; ++half) {
      quads[2 * half] = _mm512_unpacklo_epi16(pairs[2 * half], pairs[2 * half + 1]);
      quads[2 * half + 1] = _mm512_unpackhi_epi16(pairs[2 * half], pairs[2 * half + 1]);
    }
    PLX_UNROLL for (int q = 0; q < Q; ++q) {
      const __m512i high = _mm512_set1_epi32(read_word(codes[q].upper + key)), low = _mm512_set1_epi32(read_word(codes[q].lower + key));
      PLX_UNROLL for (int n = 0; n < 4; ++n) add_quads(upper[q][n], high, quads[n]);
      PLX_UNROLL for (int n = 0; n < 4; ++n) add_quads(lower[q][n], low, quads[n]);
    }
  }
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    float* const values = state.values + (first + q) * state.width + at;
    PLX_UNROLL for (int n = 0; n < 4; ++n) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper[q][n], 8), lower[q][n]);
      Floats total = load(values + kLanes * n) * decay[q];
      add_product(total, reinterpret_cast<Floats>(_mm512_cvtepi32_ps(sum)), splat(codes[q].factor));
      save(values + kLanes * n, total);
    }
  }
}

PLX_INLINE int64_t find_code_place(int64_t i) { return i / 64 * 64 + i % 16 / 4 * 16 + i % 64 / 16 * 4 + i % 4; }
#else
template <int Q>
PLX_INLINE void multiply_keys(const char* const (&rows)[4], const State& state, int64_t first, int64_t dim, int32_t (&found)[Q][4]) {
  for (int q = 0; q < Q; ++q) {
    const int16_t* const query = find_query(state, first + q).words();
    for (int k = 0; k < 4; ++k) {
      const int8_t* const codes = reinterpret_cast<const int8_t*>(rows[k]);
      int32_t sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += query[i] * static_cast<int16_t>(codes[i]);
      found[q][k] = sum;
    }
  }
}

// Adds the products of the values of two keys, at most eight numbers of each.
PLX_INLINE void add_two(const char* a, const char* b, const uint16_t* weights, int32_t* sums) {
#if defined(__AVX2__)
  const __m128i pairs = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a)), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)));
  const __m256i products = _mm256_madd_epi16(_mm256_cvtepi8_epi16(pairs), _mm256_set1_epi32(read_word(weights)));
  __m256i* const to = reinterpret_cast<__m256i*>(sums);
  _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), products));
#else
  for (int i = 0; i < 8; ++i) sums[i] += static_cast<int8_t>(a[i]) * weights[0] + static_cast<int8_t>(b[i]) * weights[1];
#endif
}

template <int Q>
PLX_INLINE void add_code_values(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first, const WeightCodes (&codes)[Q], const float* decay, int64_t at, int64_t dim) {
  const int64_t count = least(dim - at, kCacheLine);  // a multiple of 8
  int32_t sums[Q][kCacheLine] = {};
  for (int64_t key = 0; key < block.count; key += 2) {
    if (at == 0) fetcher.advance(2);
    const char *const a = block.value(key) + at, *const b = block.value(least(key + 1, block.count - 1)) + at;
    for (int q = 0; q < Q; ++q) {
      for (int64_t i = 0; i < count; i += 8) add_two(a + i, b + i, codes[q].words + key, sums[q] + i);
    }
  }
  for (int q = 0; q < Q; ++q) {
    float* const values = state.values + (first + q) * state.width + at;
    for (int64_t i = 0; i < kCacheLine; i += kLanes) {
      Ints sum;
      memcpy(&sum, sums[q] + i, sizeof sum);
      Floats total = load(values + i) * decay[q];
      add_product(total, to_floats(sum), splat(codes[q].factor));
      save(values + i, total);
    }
  }
}

PLX_INLINE int64_t find_code_place(int64_t i) { return i; }
#endif

template <int Q>
void score_codes(int64_t dim, const KeyBlock& block, const Scales& scales, Fetcher& fetcher, const State& state, int64_t first) {
  for (int64_t key = 0; key < block.count; key += 4) {
    fetcher.advance(4);
    const char* rows[4];  // the last key is repeated if fewer are left
    PLX_UNROLL for (int k = 0; k < 4; ++k) rows[k] = block.key(least(key + k, block.count - 1));
    int32_t found[Q][4];
    multiply_keys<Q>(rows, state, first, dim, found);
    PLX_UNROLL for (int q = 0; q < Q; ++q) {
      const float scale = *find_query(state, first + q).scale();
      float* const scores = state.scores + (first + q) * kFewKeys + key;
      PLX_UNROLL for (int k = 0; k < 4; ++k) scores[k] = static_cast<float>(found[q][k]) * (scales.keys[key + k] * scale);
    }
  }
}

struct FewCodes {
  static constexpr int64_t kItem = kFloatBytes;

  static void put_query(const float* from, float scale, int64_t dim, float* query) {
    const QueryCodes codes{divide_up(dim, kCacheLine) * kCacheLine, reinterpret_cast<char*>(query)};
    float most = 0, nothing = 0;
    for (int64_t i = 0; i < dim; ++i) {
      most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
      nothing += from[i] - from[i];
    }
    const float inverse = most >= kLeastCoded && nothing == 0 ? kMostQuery / most : 0.0f;
    *codes.total() = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const int32_t code = nothing == 0 ? static_cast<int32_t>(rintf(from[i] * inverse)) : 0;
      *codes.total() += code;
#if defined(__AVX512VNNI__)
      codes.upper()[i] = static_cast<int8_t>(code >> 7);
      codes.lower()[i] = static_cast<int8_t>(code & 127);
#else
      codes.words()[i] = static_cast<int16_t>(code);
#endif
    }
    *codes.scale() = most / kMostQuery * scale + nothing;
  }

  static void attend(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
    int64_t q = 0;
    for (; q + 3 <= state.queries; q += 3) add_block<3>(a, task, block, fetcher, state, q);
    if (q + 2 == state.queries) add_block<2>(a, task, block, fetcher, state, q);
    if (q + 1 == state.queries) add_block<1>(a, task, block, fetcher, state, q);
  }

  static void restore_order(const State& state) {  // of the results
    restore_places(state, [](int64_t i) { return find_code_place(i); });
  }

 private:
  template <int Q>
  static void add_block(const Attention& a, const AttentionTask& task, const KeyBlock& block, Fetcher& fetcher, const State& state,
                        int64_t first) {
    const int64_t shared = a.heads / a.kv_heads;
    float decay[Q];
    WeightCodes codes[Q];
    const Scales scales(a, block);
    score_codes<Q>(a.dim, block, scales, fetcher, state, first);
    for (int q = 0; q < Q; ++q) {
      decay[q] = weigh(a, block, state, first + q, task.position + (first + q) / shared);
      round_weights(block, state.scores + (first + q) * state.block, scales, codes[q]);
    }
    for (int64_t at = 0; at < a.dim; at += kCacheLine) add_code_values<Q>(block, fetcher, state, first, codes, decay, at, a.dim);
  }
};

}  // namespace
}  // namespace plx::PLX_ISA
