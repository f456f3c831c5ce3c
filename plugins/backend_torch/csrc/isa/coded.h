// Products with int8 and int4 panels: integers within a group of 32 inputs, floats between groups. Integer sums are exact, so
// every instruction set gives the same result.
#pragma once

#include "simd.h"
#if defined(PLX_NEON)
#include "codes_neon.h"
#else
#include "codes.h"
#endif

namespace plx::PLX_ISA {
namespace {

struct Int8LowWeights : Int8Weights {
  static constexpr int64_t kBytes = kInt8LowBlock;
  static constexpr bool kHasLow = true;

  template <int R>
  PLX_INLINE void add_group(const char* block, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    Int8Weights::add_group<R>(block + kScaleBytes, x, sums);
  }
};

struct CodedTile {
  const char* x;     // the activations of the first row
  int64_t x_stride;  // bytes between rows
  const float *scales, *sums;  // of the first row, with `groups` numbers per row
  const char* w;
  int64_t groups;
  float* out;  // [rows][kPanel]
  const char* ahead;  // the first weights that are prefetched meanwhile
  int64_t pace;       // bytes prefetched per group
};

// Adds the products of all groups to the outputs of the tile.
template <class Weights, int R>
void multiply_tile(const CodedTile& tile) {
  Codes<R> x;
  PLX_UNROLL for (int r = 0; r < R; ++r) x.x[r] = tile.x + r * tile.x_stride;
  const char *w = tile.w, *ahead = tile.ahead;
  for (int64_t group = 0; group < tile.groups; ++group, w += Weights::kBytes, ahead += tile.pace) {
    for (int64_t line = 0; line < tile.pace; line += kCacheLine) __builtin_prefetch(ahead + line, 0, 2);
    Ints sums[R][kVectors];
    Weights::template add_group<R>(w, x, sums);
    PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
      const Floats scale = load_halves(w + kHalfBytes * kLanes * v);
      const Floats low = load_halves(w + (Weights::kHasLow ? kScaleBytes : 0) + kHalfBytes * kLanes * v);
      PLX_UNROLL for (int r = 0; r < R; ++r) {
        float* const at = tile.out + r * kPanel + kLanes * v;  // in memory: the registers hold the sums of a group
        Floats result = load(at) + to_floats(sums[r][v]) * (scale * tile.scales[r * tile.groups + group]);
        if (Weights::kHasLow) result += low * tile.sums[r * tile.groups + group];
        save(at, result);
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) x.x[r] += kGroup * Weights::kCodeBytes;
  }
}

// Multiplies a tile of at most R rows.
template <class Weights, int R = Weights::kRows>
void multiply_coded(int rows, const CodedTile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return multiply_coded<Weights, R - 1>(rows, tile);
  }
  multiply_tile<Weights, R>(tile);
}

// Rounds the activations of a row to -kMost .. kMost, with a scale for each group.
template <class Weights>
void round_row(const float* x, const Input& input, int64_t row, int64_t in) {
  const int64_t groups = divide_up(in, kGroup);
  const float most = static_cast<float>(Weights::kMost);
  char* codes = static_cast<char*>(const_cast<void*>(input.x)) + row * input.stride;
  for (int64_t group = 0; group < groups; ++group, codes += kGroup * Weights::kCodeBytes) {
    float padded[kGroup] = {};
    const int64_t count = least(in - group * kGroup, kGroup);
    memcpy(padded, x + group * kGroup, static_cast<size_t>(count * kFloatBytes));
    Floats reach = splat(0.0f), doubt = splat(0.0f);
    for (int i = 0; i < kGroup; i += kLanes) {
      reach = larger(load(padded + i), larger(-load(padded + i), reach));
      doubt += load(padded + i) * 0.0f;  // NaN if a number is NaN or infinite, which makes the scale of the group NaN
    }
    const float scale = largest(reach) / most + sum(doubt);
    const Floats inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
    const Floats rounder = splat(kRounder);
    Ints total = {};
    for (int i = 0; i < kGroup; i += kLanes) {
      const Floats bounded = smaller(larger(load(padded + i) * inverse, splat(-most)), splat(most));
      const Ints whole = __builtin_convertvector((bounded + rounder) - rounder, Ints);
      total += whole;
      for (int lane = 0; lane < kLanes; ++lane) Weights::put(codes, i + lane, whole[lane]);
    }
    input.scales[row * groups + group] = scale;
    if (input.sums) input.sums[row * groups + group] = scale * sum(to_floats(total));
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
