// Products with float32 and bfloat16 panels: R rows by 16 outputs of P panels in registers, over a range of inputs.
//
// Of many rows by float32, activations are packed, and the loop over inputs is unrolled, which leaves fewer instructions to
// each product. After Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication", 2008, and the register tile of BLIS (Van Zee and van de Geijn, 2015).
//
// Each sum takes its products one after the other in the order of the inputs, however many rows there are: so a row gives
// the same bits whatever else is in the step. A sum can be added to only every four cycles, twice in each of which there
// is a place: eight sums or more at a time fill them. Few rows get there by taking two panels at once.
#pragma once

#include "simd.h"

namespace plx::PLX_ISA {
namespace {

constexpr int kUnrolled = 4;  // packed inputs
constexpr int kPairedRows = 3;  // so many rows take two panels at once

// The weights of one input (float32) or two (bfloat16), as two vectors of 8 outputs each.
struct Float32Panel {
  static constexpr int kStep = 1;
  static constexpr int64_t kBytes = 64;  // of a step
  PLX_INLINE F8 read(const char* p, int, int half) { return load(reinterpret_cast<const float*>(p) + 8 * half); }
};

struct Bfloat16Panel {
  static constexpr int kStep = 2;
  static constexpr int64_t kBytes = 64;
  PLX_INLINE F8 read(const char* p, int step, int half) {
    const U8 pairs = *reinterpret_cast<const U8Loose*>(p + 32 * half);
    return step == 0 ? widen_even(pairs) : widen_odd(pairs);
  }
};

// What the products of some rows with a range of inputs are made of, and what they are added to.
struct Pass {
  const float* x;  // of the first row, or packed
  int64_t stride, count;  // inputs
  const char* w[2];
  Sums sums[2];  // of each panel
  const char* ahead;  // weights that are fetched meanwhile, from there on
  int64_t pace;       // bytes of them, while one step of inputs is multiplied, or four of packed ones
};

template <int R>
PLX_INLINE void add_product(F8& sum, F8 a, F8 b) {
#if defined(__AVX2__)
  if (R > 4) {  // told so by an operator, GCC 12 copies sums from register to register, and runs out of them
    F8 whole = sum;
    asm("vfmadd231ps %2, %1, %0" : "+x"(whole) : "x"(a), "x"(b));
    sum = whole;
    return;
  }
#endif
  sum += a * b;
}

template <class Panel, int R>
PLX_INLINE void add_step(const float* const* rows, int64_t at, const char* w, int step, F8 (&sums)[R][2]) {
  const F8 low = Panel::read(w, step, 0), high = Panel::read(w, step, 1);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const F8 value = splat(rows[r][at + step]);
    add_product<R>(sums[r][0], value, low);
    add_product<R>(sums[r][1], value, high);
  }
}

template <class Panel, int R, int P>
void multiply_rows(const Pass& pass) {
  F8 sums[P][R][2];
  const float* rows[R];
  const char* w[P];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    w[p] = pass.w[p];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      rows[r] = pass.x + r * pass.stride;
      for (int half = 0; half < 2; ++half) sums[p][r][half] = load(pass.sums[p].at + r * pass.sums[p].stride + 8 * half);
    }
  }
  const int64_t whole = pass.count / Panel::kStep * Panel::kStep;
  const char* ahead = pass.ahead;
  int64_t at = 0;
  for (; at < whole; at += Panel::kStep) {
    if (P == 1) __builtin_prefetch(ahead);
    ahead += pass.pace;
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
      for (int step = 0; step < Panel::kStep; ++step) add_step<Panel, R>(rows, at, w[p], step, sums[p]);
      w[p] += Panel::kBytes;
    }
  }
  if (at < pass.count) {  // the last of an odd number of inputs; its neighbour does not exist
    for (int p = 0; p < P; ++p) add_step<Panel, R>(rows, at, w[p], 0, sums[p]);
  }
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < 2; ++half) save(pass.sums[p].at + r * pass.sums[p].stride + 8 * half, sums[p][r][half]);
    }
  }
}

template <int R>
PLX_INLINE void add_packed(const float* x, const char* w, F8 (&sums)[R][2]) {
  const F8 low = Float32Panel::read(w, 0, 0), high = Float32Panel::read(w, 0, 1);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const F8 value = splat(x[r]);
    add_product<R>(sums[r][0], value, low);
    add_product<R>(sums[r][1], value, high);
  }
}

// Packed rows with one panel of floats.
template <int R>
void multiply_packed(const Pass& pass) {
  F8 sums[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) sums[r][half] = load(pass.sums[0].at + r * pass.sums[0].stride + 8 * half);
  }
  const float* x = pass.x;
  const char *w = pass.w[0], *ahead = pass.ahead;
  int64_t left = pass.count;
  for (; left >= kUnrolled; left -= kUnrolled, x += kUnrolled * R, w += kUnrolled * 64, ahead += pass.pace) {
    __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 4
    for (int at = 0; at < kUnrolled; ++at) add_packed<R>(x + at * R, w + at * 64, sums);
  }
  for (; left > 0; --left, x += R, w += 64) add_packed<R>(x, w, sums);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) save(pass.sums[0].at + r * pass.sums[0].stride + 8 * half, sums[r][half]);
  }
}

static inline void multiply_packed_rows(int rows, const Pass& pass) {
  switch (rows) {
    case 1: return multiply_packed<1>(pass);
    case 2: return multiply_packed<2>(pass);
    case 3: return multiply_packed<3>(pass);
    case 4: return multiply_packed<4>(pass);
    case 5: return multiply_packed<5>(pass);
    default: return multiply_packed<6>(pass);
  }
}

template <class Panel>
void multiply_dense(int rows, int panels, const Pass& pass) {
  switch (panels == 2 ? rows + 6 : rows) {
    case 1: return multiply_rows<Panel, 1, 1>(pass);
    case 2: return multiply_rows<Panel, 2, 1>(pass);
    case 3: return multiply_rows<Panel, 3, 1>(pass);
    case 4: return multiply_rows<Panel, 4, 1>(pass);
    case 5: return multiply_rows<Panel, 5, 1>(pass);
    case 6: return multiply_rows<Panel, 6, 1>(pass);
    case 7: return multiply_rows<Panel, 1, 2>(pass);
    case 8: return multiply_rows<Panel, 2, 2>(pass);
    default: return multiply_rows<Panel, 3, 2>(pass);
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
