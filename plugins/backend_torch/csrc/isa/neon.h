// The operations of simd.h and attention.h for ARM's vectors of four floats.
#pragma once

#include "vector.h"

namespace plx::PLX_ISA {
namespace {

// Adds a * b[kLane] to a sum, rounded once. In assembly for the reason of `add_product`.
template <int kLane>
PLX_INLINE void add_lane_product(Floats& sum, Floats a, Floats b) {
  asm("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(b), "n"(kLane));
}

PLX_INLINE float sum(Floats v) {
  const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(vpadd_f32(two, two), 0);
}

PLX_INLINE float largest(Floats v) {
  const Floats two = larger(v, vextq_f32(v, v, 2));
  return larger(two, vextq_f32(two, two, 1))[0];
}

// Writes the sum of each of four vectors.
PLX_INLINE void save_sums(const Floats (&parts)[4], float* out) {
  Floats twos[2];
  PLX_UNROLL for (int i = 0; i < 2; ++i) {
    const float64x2_t a = vreinterpretq_f64_f32(parts[2 * i]), b = vreinterpretq_f64_f32(parts[2 * i + 1]);
    twos[i] = vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)));
  }
  save(out, vpaddq_f32(twos[0], twos[1]));
}

PLX_INLINE Floats load_halves(const void* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p)))); }

}  // namespace
}  // namespace plx::PLX_ISA
