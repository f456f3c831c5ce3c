// The sums of a group of int8 or int4 codes, for x86 and in plain C++; codes_neon.h has those for ARM.
//
// int8: codes are widened to 16 bits and multiplied by activations of 16 bits; the sum of a group is at most
// 32 * 127 * 32639 < 2^31. int4: codes 0 .. 15 times activations of 8 bits; 16 products share a 16-bit sum, at most
// 16 * 15 * 127 < 2^15, so no sum saturates, and a group is widened once.
#pragma once

#include "vector.h"

namespace plx::PLX_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kCodedRows = 8;
#else
constexpr int kCodedRows = 4;
#endif

// Additions are in assembly: with intrinsics, GCC 12 reorders them, runs out of registers and takes twice as long.
#if defined(__AVX512F__)
typedef __m512i Bytes;
PLX_INLINE Bytes splat_word(const void* p) { return _mm512_set1_epi32(read_word(p)); }
PLX_INLINE void add_words(Bytes& sum, Bytes value) { asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(value)); }
PLX_INLINE void add_shorts(Bytes& sum, Bytes value) { asm("vpaddw %1, %0, %0" : "+v"(sum) : "v"(value)); }
PLX_INLINE Bytes multiply_pairs(Bytes a, Bytes b) { return _mm512_madd_epi16(a, b); }
PLX_INLINE Bytes multiply_bytes(Bytes a, Bytes b) { return _mm512_maddubs_epi16(a, b); }
PLX_INLINE Bytes widen_codes(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
PLX_INLINE Bytes load_lines(const uint8_t* lines, int line, int) {
  const __m256i* const low = reinterpret_cast<const __m256i*>(lines + kLineBytes * line);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low)), _mm256_loadu_si256(low + kLines), 1);
}
PLX_INLINE Bytes lower_halves(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
PLX_INLINE Bytes upper_halves(Bytes v) { return lower_halves(_mm512_srli_epi16(v, 4)); }
#elif defined(__AVX2__)
typedef __m256i Bytes;
PLX_INLINE Bytes splat_word(const void* p) { return _mm256_set1_epi32(read_word(p)); }
PLX_INLINE void add_words(Bytes& sum, Bytes value) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(value)); }
PLX_INLINE void add_shorts(Bytes& sum, Bytes value) { asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(value)); }
PLX_INLINE Bytes multiply_pairs(Bytes a, Bytes b) { return _mm256_madd_epi16(a, b); }
PLX_INLINE Bytes multiply_bytes(Bytes a, Bytes b) { return _mm256_maddubs_epi16(a, b); }
PLX_INLINE Bytes widen_codes(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
PLX_INLINE Bytes load_lines(const uint8_t* lines, int line, int vector) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + kLineBytes * (kLines * vector + line)));
}
PLX_INLINE Bytes lower_halves(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
PLX_INLINE Bytes upper_halves(Bytes v) { return lower_halves(_mm256_srli_epi16(v, 4)); }
#endif

#if defined(__AVX2__)
// Adds to each 32-bit sum the products of two signed 16-bit numbers.
PLX_INLINE void add_pairs(Bytes& sum, Bytes weights, Bytes activations) {
#if defined(__AVX512VNNI__)
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(activations));
#else
  add_words(sum, multiply_pairs(weights, activations));
#endif
}

#if !defined(__AVX512VNNI__)
// Adds the products of unsigned by signed 8-bit numbers, two to each 16-bit sum.
PLX_INLINE void add_quads(Bytes& sum, Bytes weights, Bytes activations) { add_shorts(sum, multiply_bytes(weights, activations)); }
#endif

PLX_INLINE Ints end_quads(Bytes sum) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(sum);
#elif defined(__AVX512F__)
  return reinterpret_cast<Ints>(multiply_pairs(sum, _mm512_set1_epi16(1)));
#else
  return reinterpret_cast<Ints>(multiply_pairs(sum, _mm256_set1_epi16(1)));
#endif
}
#endif

template <int R>
struct Codes {  // the rounded activations of a group, for R rows
  const char* x[R];
};

template <class Number>
struct RoundedTo {  // the form of activations
  using Code = Number;
  static constexpr int kRows = kCodedRows;
  static constexpr int64_t kCodeBytes = sizeof(Code);

  PLX_INLINE void put(void* codes, int64_t i, int32_t code) { static_cast<Code*>(codes)[i] = static_cast<Code>(code); }
};

struct Int8Weights : RoundedTo<int16_t> {
  static constexpr int64_t kBytes = kInt8Block;
  static constexpr int kMost = 32639;  // 127 * 256 + 127, the most that two signed bytes hold
  static constexpr bool kHasLow = false;

  // Computes the sums of one block, for R rows and kPanel outputs.
  template <int R>
  PLX_INLINE void add_group(const char* block, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(block + kInt8Codes);
#if defined(__AVX2__)
    Bytes totals[R][kVectors] = {};
#pragma GCC unroll 4
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      Bytes weights[kVectors];
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) weights[v] = widen_codes(codes + kPairBytes * pair + 2 * kLanes * v);
      PLX_UNROLL for (int r = 0; r < R; ++r) {
        const Bytes activations = splat_word(x.x[r] + 2 * sizeof(Code) * pair);
        PLX_UNROLL for (int v = 0; v < kVectors; ++v) add_pairs(totals[r][v], weights[v], activations);
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = reinterpret_cast<Ints>(totals[r][v]);
    }
#else
    for (int r = 0; r < R; ++r) {
      int32_t totals[kPanel] = {};
      const Code* const activations = reinterpret_cast<const Code*>(x.x[r]);
      for (int pair = 0; pair < kGroup / 2; ++pair) {
        const int32_t first = activations[2 * pair], second = activations[2 * pair + 1];
        const int8_t* w = codes + kPairBytes * pair;
        for (int o = 0; o < kPanel; ++o) totals[o] += w[2 * o] * first + w[2 * o + 1] * second;
      }
      memcpy(&sums[r], totals, sizeof totals);
    }
#endif
  }
};

struct Int4Weights : RoundedTo<int8_t> {
  static constexpr int64_t kBytes = kInt4Block;
  static constexpr int kMost = 127;
  static constexpr bool kHasLow = true;

  template <int R>
  PLX_INLINE void add_group(const char* block, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(block + kInt4Codes);
#if defined(__AVX2__)
    Bytes totals[R][kVectors] = {};
    PLX_UNROLL for (int j = 0; j < kLines; ++j) {
      Bytes lower[kVectors], upper[kVectors];
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const Bytes both = load_lines(codes, j, v);
        lower[v] = lower_halves(both), upper[v] = upper_halves(both);
      }
      PLX_UNROLL for (int r = 0; r < R; ++r) {
        const Bytes first = splat_word(x.x[r] + kLineInputs * j), second = splat_word(x.x[r] + kLineInputs * j + kQuad);
        PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
          add_quads(totals[r][v], lower[v], first);
          add_quads(totals[r][v], upper[v], second);
        }
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = end_quads(totals[r][v]);
    }
#else
    for (int r = 0; r < R; ++r) {
      int32_t totals[kPanel];
      const Code* const activations = reinterpret_cast<const Code*>(x.x[r]);
      for (int o = 0; o < kPanel; ++o) {
        int32_t total = 0;
        for (int j = 0; j < kLines; ++j) {
          const uint8_t* w = codes + kLineBytes * (kLines * (o / kLineOutputs) + j) + kQuad * (o % kLineOutputs);
          const Code* const inputs = activations + kLineInputs * j;
          for (int t = 0; t < kQuad; ++t) total += (w[t] & 15) * inputs[t] + (w[t] >> 4) * inputs[kQuad + t];
        }
        totals[o] = total;
      }
      memcpy(&sums[r], totals, sizeof totals);
    }
#endif
  }
};

}  // namespace
}  // namespace plx::PLX_ISA
