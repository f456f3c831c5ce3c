// The sums of a group of int8 or int4 codes, for ARM: with SMLAL, with SDOT of FEAT_DotProd, or with SMMLA of FEAT_I8MM.
//
// SDOT and SMMLA multiply signed bytes only, so they take an int8 weight's activations of 16 bits in two bytes, both signed. In
// assembly, since GCC 12 otherwise copies sums between registers and runs out of them.
#pragma once

#include "vector.h"

namespace plx::PLX_ISA {
namespace {

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define PLX_SMMLA
#elif defined(__ARM_FEATURE_DOTPROD)
#define PLX_SDOT
#endif

template <int R>
struct Codes {  // the rounded activations of a group, for R rows
  const char* x[R];
};

PLX_INLINE int8x16_t load_bytes(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }

// Adds the products of four numbers by number kLane of `activations`: to each 32-bit sum one. The upper half of the numbers if
// kHalf is 1.
template <int kLane, int kHalf>
PLX_INLINE void add_shorts(int32x4_t& sum, int16x8_t weights, int16x8_t activations) {
  if constexpr (kHalf) {
    asm("smlal2 %0.4s, %1.8h, %2.h[%3]" : "+w"(sum) : "w"(weights), "x"(activations), "n"(kLane));
  } else {
    asm("smlal %0.4s, %1.4h, %2.h[%3]" : "+w"(sum) : "w"(weights), "x"(activations), "n"(kLane));
  }
}

// Adds the products of eight bytes by eight to 16-bit sums; of the upper halves if kHalf is 1.
template <int kHalf>
PLX_INLINE void add_bytes(int16x8_t& sum, int8x16_t weights, int8x16_t activations) {
  if constexpr (kHalf) {
    asm("smlal2 %0.8h, %1.16b, %2.16b" : "+w"(sum) : "w"(weights), "w"(activations));
  } else {
    asm("smlal %0.8h, %1.8b, %2.8b" : "+w"(sum) : "w"(weights), "w"(activations));
  }
}

#if defined(__ARM_FEATURE_DOTPROD)
// Adds to each 32-bit sum the products of four bytes by quad kLane of `activations`.
template <int kLane>
PLX_INLINE void add_quads(int32x4_t& sum, int8x16_t weights, int8x16_t activations) {
  asm("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(weights), "w"(activations), "n"(kLane));
}
#endif

#if defined(PLX_SMMLA)
// Adds the products of two rows by two outputs, of eight inputs each, to the sums [row][output].
PLX_INLINE void add_square(int32x4_t& sum, int8x16_t activations, int8x16_t weights) {
  asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(activations), "w"(weights));
}
#endif

PLX_INLINE Ints join_lower(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
PLX_INLINE Ints join_upper(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

PLX_INLINE int8x16_t zip_quads(int8x16_t a, int8x16_t b, int half) {
  const int16x8_t first = vreinterpretq_s16_s8(a), second = vreinterpretq_s16_s8(b);
  return vreinterpretq_s8_s16(half ? vzip2q_s16(first, second) : vzip1q_s16(first, second));
}
PLX_INLINE int8x16_t zip_eights(int8x16_t a, int8x16_t b, int half) {
  const int32x4_t first = vreinterpretq_s32_s8(a), second = vreinterpretq_s32_s8(b);
  return vreinterpretq_s8_s32(half ? vzip2q_s32(first, second) : vzip1q_s32(first, second));
}

// Returns the codes of four inputs, beginning with that of pair `pair`, of the four outputs of a vector.
PLX_INLINE int8x16_t load_quads(const int8_t* codes, int pair, int vector) {
  const int8_t* const at = codes + kPairBytes * pair + vector / 2 * 16;
  return zip_quads(vld1q_s8(at), vld1q_s8(at + kPairBytes), vector % 2);
}

struct Int8Weights {
  static constexpr int64_t kBytes = kInt8Block;
  static constexpr int kMost = 32639;  // 127 * 256 + 127, the most that two signed bytes hold
  static constexpr bool kHasLow = false;
  static constexpr int64_t kCodeBytes = 2;
#if defined(__ARM_FEATURE_DOTPROD)
  static constexpr int kRows = 3;

  // Of each eight codes first the upper bytes, then the lower.
  PLX_INLINE void put(void* codes, int64_t i, int32_t code) {
    int8_t* const at = static_cast<int8_t*>(codes) + i / 8 * 16 + i % 8;
    const int32_t upper = (code + 128) >> 8;
    at[0] = static_cast<int8_t>(upper);
    at[8] = static_cast<int8_t>(code - upper * 256);
  }
#else
  static constexpr int kRows = 4;

  PLX_INLINE void put(void* codes, int64_t i, int32_t code) { static_cast<int16_t*>(codes)[i] = static_cast<int16_t>(code); }
#endif

  // Computes the sums of one block, for R rows and kPanel outputs.
  template <int R>
  PLX_INLINE void add_group(const char* block, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(block + kInt8Codes);
#if defined(PLX_SMMLA)
    int32x4_t totals[R][2 * kVectors] = {};
    PLX_UNROLL for (int eight = 0; eight < kGroup / 8; ++eight, codes += 4 * kPairBytes) {
      int8x16_t activations[R];
      PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = load_bytes(x.x[r] + 16 * eight);
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int8x16_t first = load_quads(codes, 0, v), second = load_quads(codes, 2, v);
        PLX_UNROLL for (int half = 0; half < 2; ++half) {
          const int8x16_t weights = zip_eights(first, second, half);
          PLX_UNROLL for (int r = 0; r < R; ++r) add_square(totals[r][2 * v + half], activations[r], weights);
        }
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const Ints upper = join_lower(totals[r][2 * v], totals[r][2 * v + 1]);
        sums[r][v] = upper * 256 + join_upper(totals[r][2 * v], totals[r][2 * v + 1]);
      }
    }
#elif defined(PLX_SDOT)
    int32x4_t upper[R][kVectors] = {}, lower[R][kVectors] = {};
    PLX_UNROLL for (int eight = 0; eight < kGroup / 8; ++eight, codes += 4 * kPairBytes) {
      int8x16_t activations[R];
      PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = load_bytes(x.x[r] + 16 * eight);
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int8x16_t first = load_quads(codes, 0, v), second = load_quads(codes, 2, v);
        PLX_UNROLL for (int r = 0; r < R; ++r) {
          add_quads<0>(upper[r][v], first, activations[r]), add_quads<1>(upper[r][v], second, activations[r]);
          add_quads<2>(lower[r][v], first, activations[r]), add_quads<3>(lower[r][v], second, activations[r]);
        }
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = upper[r][v] * 256 + lower[r][v];
    }
#else
    int32x4_t totals[R][kVectors] = {};
    for (int eight = 0; eight < kGroup / 8; ++eight, codes += 4 * kPairBytes) {
      int16x8_t activations[R];
      PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = vreinterpretq_s16_s8(load_bytes(x.x[r] + 16 * eight));
      add_eight<R, 0>(codes, activations, totals);
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = totals[r][v];
    }
#endif
  }

 private:
  // Adds the products of the inputs of four pairs from kInput on. A recursion, since a lane has to be a constant.
  template <int R, int kInput>
  PLX_INLINE void add_eight(const int8_t* codes, const int16x8_t (&activations)[R], int32x4_t (&totals)[R][kVectors]) {
    const int8_t* const pair = codes + kInput / 2 * kPairBytes;
    const int8x16_t first = vld1q_s8(pair), second = vld1q_s8(pair + 16);
    const int8x16_t bytes = kInput % 2 ? vuzp2q_s8(first, second) : vuzp1q_s8(first, second);
    PLX_UNROLL for (int half = 0; half < 2; ++half) {
      const int16x8_t weights = half ? vmovl_high_s8(bytes) : vmovl_s8(vget_low_s8(bytes));
      PLX_UNROLL for (int r = 0; r < R; ++r) {
        add_shorts<kInput, 0>(totals[r][2 * half], weights, activations[r]);
        add_shorts<kInput, 1>(totals[r][2 * half + 1], weights, activations[r]);
      }
    }
    if constexpr (kInput + 1 < 8) add_eight<R, kInput + 1>(codes, activations, totals);
  }
};

struct Int4Weights {
  static constexpr int64_t kBytes = kInt4Block;
  static constexpr int kMost = 127;
  static constexpr bool kHasLow = true;
  static constexpr int64_t kCodeBytes = 1;
#if defined(PLX_SMMLA)
  static constexpr int kRows = 6;
#elif defined(PLX_SDOT)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif

  PLX_INLINE void put(void* codes, int64_t i, int32_t code) { static_cast<int8_t*>(codes)[i] = static_cast<int8_t>(code); }

  template <int R>
  PLX_INLINE void add_group(const char* block, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    const uint8_t* const codes = reinterpret_cast<const uint8_t*>(block + kInt4Codes);
#if defined(PLX_SMMLA)
    if constexpr (R > 1) return add_squares<R>(codes, x, sums);
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    add_lines<R>(codes, x, sums);
#else
    int16x8_t totals[R][2 * kVectors] = {};
    PLX_UNROLL for (int line = 0; line < kLines; ++line) {
      PLX_UNROLL for (int upper = 0; upper < 2; ++upper) {
        int8x16_t activations[R];
        PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = vreinterpretq_s8_s32(vdupq_n_s32(read_word(x.x[r] + kLineInputs * line + kQuad * upper)));
        PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
          const int8x16_t weights = load_line(codes, line, v, upper);
          PLX_UNROLL for (int r = 0; r < R; ++r) {
            add_bytes<0>(totals[r][2 * v], weights, activations[r]), add_bytes<1>(totals[r][2 * v + 1], weights, activations[r]);
          }
        }
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = vpaddq_s32(vpaddlq_s16(totals[r][2 * v]), vpaddlq_s16(totals[r][2 * v + 1]));
      }
    }
#endif
  }

 private:
  // Returns the lower or upper halves of the codes of the four outputs of a vector.
  PLX_INLINE int8x16_t load_line(const uint8_t* codes, int line, int vector, int upper) {
    const uint8x16_t both = vld1q_u8(codes + kLineBytes * (kLines * (vector / 2) + line) + vector % 2 * 16);
    return vreinterpretq_s8_u8(upper ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)));
  }

#if defined(__ARM_FEATURE_DOTPROD)
  template <int R>
  PLX_INLINE void add_lines(const uint8_t* codes, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    int32x4_t totals[R][kVectors] = {};
    PLX_UNROLL for (int line = 0; line < kLines; line += 2) {
      int8x16_t activations[R];
      PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = load_bytes(x.x[r] + kLineInputs * line);
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int8x16_t first = load_line(codes, line, v, 0), second = load_line(codes, line, v, 1);
        PLX_UNROLL for (int r = 0; r < R; ++r) add_quads<0>(totals[r][v], first, activations[r]), add_quads<1>(totals[r][v], second, activations[r]);
        const int8x16_t third = load_line(codes, line + 1, v, 0), fourth = load_line(codes, line + 1, v, 1);
        PLX_UNROLL for (int r = 0; r < R; ++r) add_quads<2>(totals[r][v], third, activations[r]), add_quads<3>(totals[r][v], fourth, activations[r]);
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = totals[r][v];
    }
  }
#endif

#if defined(PLX_SMMLA)
  template <int R>
  PLX_INLINE void add_squares(const uint8_t* codes, const Codes<R>& x, Ints (&sums)[R][kVectors]) {
    constexpr int kCouples = (R + 1) / 2;  // the last row is beside itself if R is odd
    int32x4_t totals[kCouples][2 * kVectors] = {};
    PLX_UNROLL for (int line = 0; line < kLines; ++line) {
      int8x16_t activations[kCouples];
      PLX_UNROLL for (int c = 0; c < kCouples; ++c) {
        const char *const first = x.x[2 * c] + kLineInputs * line, *const second = x.x[2 * c + 1 < R ? 2 * c + 1 : R - 1] + kLineInputs * line;
        activations[c] = vcombine_s8(vld1_s8(reinterpret_cast<const int8_t*>(first)), vld1_s8(reinterpret_cast<const int8_t*>(second)));
      }
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int8x16_t first = load_line(codes, line, v, 0), second = load_line(codes, line, v, 1);
        PLX_UNROLL for (int half = 0; half < 2; ++half) {
          const int8x16_t weights = zip_eights(first, second, half);
          PLX_UNROLL for (int c = 0; c < kCouples; ++c) add_square(totals[c][2 * v + half], activations[c], weights);
        }
      }
    }
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      PLX_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int32x4_t a = totals[r / 2][2 * v], b = totals[r / 2][2 * v + 1];
        sums[r][v] = r % 2 ? join_upper(a, b) : join_lower(a, b);
      }
    }
  }
#endif
};

}  // namespace
}  // namespace plx::PLX_ISA
