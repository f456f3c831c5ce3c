// Products with int8 and int4 panels: integers within a group of 32 inputs, floats between groups.
//
// int8: codes are widened to 16 bits and multiplied by activations of 16 bits; a group's sum is at most
// 32 * 127 * 32767 < 2^31. int4: codes 0 .. 15 times activations of 8 bits; 16 products share a 16-bit sum, at most
// 16 * 15 * 127 < 2^15, so nothing saturates and a group is widened once.
#pragma once

#include "simd.h"

namespace plx::PLX_ISA {
namespace {

constexpr int kCodedRows = 4;

#if defined(__AVX2__)
// Sums are added to in place. Told so by an intrinsic, GCC 12 reorders whole trees of additions, runs out of registers and
// takes twice as long.
PLX_INLINE void add_words(__m256i& sum, __m256i value) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(value)); }
PLX_INLINE void add_shorts(__m256i& sum, __m256i value) { asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(value)); }
#endif

struct Int8Panel {
  using Code = int16_t;
  static constexpr int64_t kBytes = kInt8Block;
  static constexpr bool kHasLow = false;

  // The sums of one group, for R rows and 16 outputs.
  template <int R>
  PLX_INLINE void add_group(const char* block, const Code* const* x, I8 (&sums)[R][2]) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(block + 32);
#if defined(__AVX2__)
    __m256i totals[R][2] = {};
#pragma GCC unroll 4
    for (int pair = 0; pair < 16; ++pair) {
      const __m128i* w = reinterpret_cast<const __m128i*>(codes + 32 * pair);
      const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128(w)), high = _mm256_cvtepi8_epi16(_mm_loadu_si128(w + 1));
      for (int r = 0; r < R; ++r) {
        const __m256i value = _mm256_set1_epi32(read_word(x[r] + 2 * pair));
        add_words(totals[r][0], _mm256_madd_epi16(low, value));
        add_words(totals[r][1], _mm256_madd_epi16(high, value));
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < 2; ++half) sums[r][half] = reinterpret_cast<I8>(totals[r][half]);
    }
#else
    for (int r = 0; r < R; ++r) {
      int32_t totals[16] = {};
      for (int pair = 0; pair < 16; ++pair) {
        const int32_t first = x[r][2 * pair], second = x[r][2 * pair + 1];
        const int8_t* w = codes + 32 * pair;
        for (int o = 0; o < 16; ++o) totals[o] += w[2 * o] * first + w[2 * o + 1] * second;
      }
      memcpy(&sums[r], totals, sizeof totals);
    }
#endif
  }

  PLX_INLINE int32_t read_word(const Code* p) {
    int32_t word;
    memcpy(&word, p, 4);
    return word;
  }
};

struct Int4Panel {
  using Code = int8_t;
  static constexpr int64_t kBytes = kInt4Block;
  static constexpr bool kHasLow = true;

  template <int R>
  PLX_INLINE void add_group(const char* block, const Code* const* x, I8 (&sums)[R][2]) {
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(block + 64);
#if defined(__AVX2__)
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i totals[R][2] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * j));
      const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * (4 + j)));
      const __m256i lower0 = _mm256_and_si256(w0, mask), upper0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), mask);
      const __m256i lower1 = _mm256_and_si256(w1, mask), upper1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), mask);
      for (int r = 0; r < R; ++r) {
        const __m256i first = _mm256_set1_epi32(read_word(x[r] + 8 * j));
        const __m256i second = _mm256_set1_epi32(read_word(x[r] + 8 * j + 4));
        add_shorts(totals[r][0], _mm256_maddubs_epi16(lower0, first));
        add_shorts(totals[r][1], _mm256_maddubs_epi16(lower1, first));
        add_shorts(totals[r][0], _mm256_maddubs_epi16(upper0, second));
        add_shorts(totals[r][1], _mm256_maddubs_epi16(upper1, second));
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < 2; ++half) {
        sums[r][half] = reinterpret_cast<I8>(_mm256_madd_epi16(totals[r][half], ones));
      }
    }
#else
    for (int r = 0; r < R; ++r) {
      int32_t totals[16];
      for (int o = 0; o < 16; ++o) {
        int32_t total = 0;
        for (int j = 0; j < 4; ++j) {
          const uint8_t* w = codes + 32 * (4 * (o / 8) + j) + 4 * (o % 8);
          for (int t = 0; t < 4; ++t) total += (w[t] & 15) * x[r][8 * j + t] + (w[t] >> 4) * x[r][8 * j + 4 + t];
        }
        totals[o] = total;
      }
      memcpy(&sums[r], totals, sizeof totals);
    }
#endif
  }

  PLX_INLINE int32_t read_word(const Code* p) {
    int32_t word;
    memcpy(&word, p, 4);
    return word;
  }
};

// Adds to tile[R][16] the products of `groups` groups, whose activations lie `width` (and their scales `width` / 32) apart.
template <class Panel, int R>
void multiply_rows(const Input& input, int64_t row, int64_t groups, const char* w, float* tile) {
  using Code = typename Panel::Code;
  const int64_t width = groups * kGroup;
  const Code* x[R];
  for (int r = 0; r < R; ++r) x[r] = static_cast<const Code*>(input.codes) + (row + r) * width;
  const float* scales = input.scales + row * groups;
  const float* totals = Panel::kHasLow ? input.sums + row * groups : nullptr;
  for (int64_t group = 0; group < groups; ++group, w += Panel::kBytes) {
    for (int64_t line = 0; line < Panel::kBytes; line += 64) __builtin_prefetch(w + 4 * Panel::kBytes + line);
    I8 sums[R][2];
    Panel::template add_group<R>(w, x, sums);
    for (int half = 0; half < 2; ++half) {
      const F8 scale = load_halves(w + 16 * half);
      const F8 low = load_halves(w + (Panel::kHasLow ? 32 : 0) + 16 * half);
      for (int r = 0; r < R; ++r) {
        float* const at = tile + r * 16 + 8 * half;  // in memory between groups: the registers are for the sums of a group
        F8 result = load(at) + to_floats(sums[r][half]) * (scale * scales[r * groups + group]);
        if (Panel::kHasLow) result += low * totals[r * groups + group];
        save(at, result);
      }
    }
    for (int r = 0; r < R; ++r) x[r] += kGroup;
  }
}

template <class Panel>
void multiply_coded(int rows, const Input& input, int64_t row, int64_t groups, const char* w, float* tile) {
  switch (rows) {
    case 1: return multiply_rows<Panel, 1>(input, row, groups, w, tile);
    case 2: return multiply_rows<Panel, 2>(input, row, groups, w, tile);
    case 3: return multiply_rows<Panel, 3>(input, row, groups, w, tile);
    default: return multiply_rows<Panel, 4>(input, row, groups, w, tile);
  }
}

// Rounds the activations of a row, group by group, to -most .. most.
template <class Code>
void round_row(const Input& input, int32_t most, int64_t row, int64_t in) {
  const int64_t groups = (in + kGroup - 1) / kGroup;
  const float* x = input.x + row * input.stride;
  Code* codes = static_cast<Code*>(input.codes) + row * groups * kGroup;
  for (int64_t group = 0; group < groups; ++group) {
    float padded[kGroup] = {};
    const int64_t count = in - group * kGroup < kGroup ? in - group * kGroup : kGroup;
    memcpy(padded, x + group * kGroup, static_cast<size_t>(count) * 4);
    F8 reach = splat(0.0f), doubt = splat(0.0f);
    for (int i = 0; i < kGroup; i += 8) {
      reach = larger(load(padded + i), larger(-load(padded + i), reach));
      doubt += load(padded + i) * 0.0f;  // what is infinite or no number makes the whole group so, not a number of ours
    }
    const float scale = largest(reach) / static_cast<float>(most) + sum(doubt);
    const F8 inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
    const F8 magic = splat(12582912.0f);
    I8 total = {};
    for (int i = 0; i < kGroup; i += 8) {
      const F8 bounded = smaller(larger(load(padded + i) * inverse, splat(static_cast<float>(-most))), splat(static_cast<float>(most)));
      const I8 whole = __builtin_convertvector((bounded + magic) - magic, I8);
      total += whole;
      for (int lane = 0; lane < 8; ++lane) codes[group * kGroup + i + lane] = static_cast<Code>(whole[lane]);
    }
    input.scales[row * groups + group] = scale;
    if (input.sums) input.sums[row * groups + group] = scale * sum(to_floats(total));
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
