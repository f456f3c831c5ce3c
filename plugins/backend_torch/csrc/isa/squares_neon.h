// Products of bfloat16 panels and activations with BFMMLA: two rows by two outputs, four inputs at once.
//
// BFDOT adds two products to a sum, and BFMMLA does the same twice: products are exact, the sum of two is rounded, and added to
// the sum, rounded again, both to odd. So a row has the same bits beside any others, and alone with BFDOT.
#pragma once

#include "simd.h"
#include "tile.h"

namespace plx::PLX_ISA {
namespace {

typedef uint16x8_t Halves;  // bfloat16

PLX_INLINE Halves load_step(const char* p) { return vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p))); }

PLX_INLINE Halves join_rows(const char* first, const char* second) {  // four numbers of each
  return vreinterpretq_u16_u8(vcombine_u8(vld1_u8(reinterpret_cast<const uint8_t*>(first)), vld1_u8(reinterpret_cast<const uint8_t*>(second))));
}

PLX_INLINE Floats join_pairs(Floats a, Floats b, int half) {
  const float64x2_t first = vreinterpretq_f64_f32(a), second = vreinterpretq_f64_f32(b);
  return vreinterpretq_f32_f64(half ? vzip2q_f64(first, second) : vzip1q_f64(first, second));
}

PLX_INLINE Halves zip_pairs(Halves a, Halves b, int half) {
  const uint32x4_t first = vreinterpretq_u32_u16(a), second = vreinterpretq_u32_u16(b);
  return vreinterpretq_u16_u32(half ? vzip2q_u32(first, second) : vzip1q_u32(first, second));
}

// Adds the products of two rows by two outputs, of four inputs each, to the sums [row][output].
PLX_INLINE void add_square(Floats& sum, Halves activations, Halves weights) {
  asm("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(activations), "w"(weights));
}

// Adds the products of two inputs to each sum.
PLX_INLINE void add_pairs(Floats& sum, Halves weights, Halves activations) {
  asm("bfdot %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(weights), "w"(activations));
}

template <int kLane>
PLX_INLINE void add_lane_pairs(Floats& sum, Halves weights, Halves activations) {
  asm("bfdot %0.4s, %1.8h, %2.2h[%3]" : "+w"(sum) : "w"(weights), "w"(activations), "n"(kLane));
}

// Adds the products of one row, of step kStep on of four.
template <int P, int kStep>
PLX_INLINE void add_steps(Halves activations, const char* const* w, Floats (&sums)[P * kVectors]) {
  PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
    add_lane_pairs<kStep>(sums[v], load_step(w[v / kVectors] + kStep * kStepBytes + v % kVectors * 16), activations);
  }
  if constexpr (kStep + 1 < 4) add_steps<P, kStep + 1>(activations, w, sums);
}

template <int P>
void multiply_row(const Tile& tile) {
  Floats sums[P * kVectors];
  PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) sums[v] = load(tile.sums[v / kVectors].from + v % kVectors * kLanes);
  const char *x = tile.x, *w[P];
  PLX_UNROLL for (int p = 0; p < P; ++p) w[p] = tile.w[p];
  int64_t ahead = tile.ahead, step = tile.steps;
  for (; step >= 4; step -= 4, x += 16, ahead += 4 * (tile.pace - kStepBytes)) {
    PLX_UNROLL for (int i = 0; i < 4 * P; ++i) __builtin_prefetch(w[i % P] + ahead + i / P * tile.pace, 0, 2);
    add_steps<P, 0>(load_step(x), w, sums);
    PLX_UNROLL for (int p = 0; p < P; ++p) w[p] += 4 * kStepBytes;
  }
  for (; step > 0; --step, x += 4) {
    const Halves activations = vreinterpretq_u16_s32(vdupq_n_s32(read_word(x)));
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) add_pairs(sums[v], load_step(w[v / kVectors] + v % kVectors * 16), activations);
    PLX_UNROLL for (int p = 0; p < P; ++p) w[p] += kStepBytes;
  }
  PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) save(tile.sums[v / kVectors].to + v % kVectors * kLanes, sums[v]);
}

template <int R, int P>
void multiply_couples(const Tile& tile) {
  constexpr int kCouples = (R + 1) / 2;  // the last row is beside itself if R is odd
  Floats sums[kCouples][2 * P * kVectors];
  const char *x[2 * kCouples], *w[P];
  PLX_UNROLL for (int r = 0; r < 2 * kCouples; ++r) x[r] = tile.x + (r < R ? r : R - 1) * tile.x_stride;
  PLX_UNROLL for (int p = 0; p < P; ++p) w[p] = tile.w[p];
  PLX_UNROLL for (int c = 0; c < kCouples; ++c) {
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
      const Sums& panel = tile.sums[v / kVectors];
      const float* const from = panel.from + v % kVectors * kLanes;
      const Floats first = load(from + 2 * c * panel.from_stride), second = load(from + (2 * c + 1 < R ? 2 * c + 1 : R - 1) * panel.from_stride);
      sums[c][2 * v] = join_pairs(first, second, 0), sums[c][2 * v + 1] = join_pairs(first, second, 1);
    }
  }
  int64_t ahead = tile.ahead, step = tile.steps;
  for (; step >= 2; step -= 2, ahead += 2 * (tile.pace - kStepBytes)) {
    PLX_UNROLL for (int i = 0; i < 2 * P; ++i) __builtin_prefetch(w[i % P] + ahead + i / P * tile.pace, 0, 2);
    Halves activations[kCouples];
    PLX_UNROLL for (int c = 0; c < kCouples; ++c) activations[c] = join_rows(x[2 * c], x[2 * c + 1]);
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
      const char* const at = w[v / kVectors] + v % kVectors * 16;
      const Halves first = load_step(at), second = load_step(at + kStepBytes);
      PLX_UNROLL for (int half = 0; half < 2; ++half) {
        const Halves weights = zip_pairs(first, second, half);
        PLX_UNROLL for (int c = 0; c < kCouples; ++c) add_square(sums[c][2 * v + half], activations[c], weights);
      }
    }
    PLX_UNROLL for (int r = 0; r < 2 * kCouples; ++r) x[r] += 8;
    PLX_UNROLL for (int p = 0; p < P; ++p) w[p] += 2 * kStepBytes;
  }
  if (step > 0) {
    PLX_UNROLL for (int c = 0; c < kCouples; ++c) {
      const int32x2_t first = vdup_n_s32(read_word(x[2 * c])), second = vdup_n_s32(read_word(x[2 * c + 1]));
      const Halves activations = vreinterpretq_u16_s32(vcombine_s32(first, second));
      PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
        const Floats weights = vreinterpretq_f32_u16(load_step(w[v / kVectors] + v % kVectors * 16));
        PLX_UNROLL for (int half = 0; half < 2; ++half) {
          add_pairs(sums[c][2 * v + half], vreinterpretq_u16_f32(join_pairs(weights, weights, half)), activations);
        }
      }
    }
  }
  PLX_UNROLL for (int c = 0; c < kCouples; ++c) {
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
      const Sums& panel = tile.sums[v / kVectors];
      float* const to = panel.to + 2 * c * panel.stride + v % kVectors * kLanes;
      save(to, join_pairs(sums[c][2 * v], sums[c][2 * v + 1], 0));
      if (2 * c + 1 < R) save(to + panel.stride, join_pairs(sums[c][2 * v], sums[c][2 * v + 1], 1));
    }
  }
}

template <int R, int P>
void multiply_squares(const Tile& tile) {
  if constexpr (R == 1) {
    multiply_row<P>(tile);
  } else {
    multiply_couples<R, P>(tile);
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
