// Products with float32 and bfloat16 panels: R rows by 16 outputs in registers, over a range of inputs.
#pragma once

#include "simd.h"

namespace plx::PLX_ISA {
namespace {

constexpr int kDenseRows = 6;

// The weights of one input (float32) or two (bfloat16), as two vectors of 8 outputs each.
struct Float32Panel {
  static constexpr int kStep = 1;
  static constexpr int kRows = 6;  // of a tile: 12 of 16 registers hold sums
  static constexpr int64_t kBytes = 64;  // of a step
  PLX_INLINE F8 read(const char* p, int, int half) { return load(reinterpret_cast<const float*>(p) + 8 * half); }
};

struct Bfloat16Panel {
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;  // the widening takes registers too
  static constexpr int64_t kBytes = 64;
  PLX_INLINE F8 read(const char* p, int step, int half) {
    const U8 pairs = *reinterpret_cast<const U8Loose*>(p + 32 * half);
    return step == 0 ? widen_even(pairs) : widen_odd(pairs);
  }
};

// Adds to sums[R][16] the products of inputs 0 .. count - 1. Few rows take several sums per output in turn, since a sum
// can be added to only every four cycles.
template <class Panel, int R>
PLX_INLINE void add_steps(const float* const* x, const char* w, F8 (&sums)[R][2]) {
  for (int step = 0; step < Panel::kStep; ++step) {
    const F8 low = Panel::read(w, step, 0), high = Panel::read(w, step, 1);
    for (int r = 0; r < R; ++r) {
      const F8 value = splat(x[r][step]);
      sums[r][0] += value * low;
      sums[r][1] += value * high;
    }
  }
}

template <class Panel, int R>
void multiply_rows(const float* x, int64_t stride, const char* w, int64_t count, float* tile) {
  constexpr int kTurns = R == 1 ? 4 : R <= 3 ? 2 : 1;
  F8 sums[kTurns][R][2] = {};
  const float* rows[R];
  for (int r = 0; r < R; ++r) {
    rows[r] = x + r * stride;
    sums[0][r][0] = load(tile + r * 16);
    sums[0][r][1] = load(tile + r * 16 + 8);
  }
  const int64_t steps = count / Panel::kStep;
  int64_t done = 0;
  for (; done + kTurns <= steps; done += kTurns) {
    __builtin_prefetch(w + 1024);
    if (kTurns >= 2) __builtin_prefetch(w + 1088);
    if (kTurns >= 4) __builtin_prefetch(w + 1152), __builtin_prefetch(w + 1216);
#pragma GCC unroll 4
    for (int turn = 0; turn < kTurns; ++turn) {
      add_steps<Panel, R>(rows, w, sums[turn]);
      w += Panel::kBytes;
      for (int r = 0; r < R; ++r) rows[r] += Panel::kStep;
    }
  }
  for (; done < steps; ++done) {
    add_steps<Panel, R>(rows, w, sums[0]);
    w += Panel::kBytes;
    for (int r = 0; r < R; ++r) rows[r] += Panel::kStep;
  }
  if (Panel::kStep == 2 && count % 2) {  // the last of an odd number of inputs; its neighbour does not exist
    const F8 low = Panel::read(w, 0, 0), high = Panel::read(w, 0, 1);
    for (int r = 0; r < R; ++r) {
      sums[0][r][0] += rows[r][0] * low;
      sums[0][r][1] += rows[r][0] * high;
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int half = 0; half < 2; ++half) {
      F8 whole = sums[0][r][half];
      for (int turn = 1; turn < kTurns; ++turn) whole += sums[turn][r][half];
      save(tile + r * 16 + 8 * half, whole);
    }
  }
}

template <class Panel>
void multiply_dense(int rows, const float* x, int64_t stride, const char* w, int64_t count, float* tile) {
  switch (rows) {
    case 1: return multiply_rows<Panel, 1>(x, stride, w, count, tile);
    case 2: return multiply_rows<Panel, 2>(x, stride, w, count, tile);
    case 3: return multiply_rows<Panel, 3>(x, stride, w, count, tile);
    case 4: return multiply_rows<Panel, 4>(x, stride, w, count, tile);
    case 5: return multiply_rows<Panel, 5>(x, stride, w, count, tile);
    default: return multiply_rows<Panel, 6>(x, stride, w, count, tile);
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
