// Products with float32 and bfloat16 panels: a tile of R rows by P panels of outputs, whose sums stay in registers for all
// inputs of a pass.
//
// Each sum adds its products in the same order for every size of tile, so a row gives the same bits in any batch. An addition
// to a sum takes four cycles, and two can begin in each cycle: eight or more sums keep the multipliers busy. Tiles with few
// rows have more panels for that.
//
// Register tiles after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, and BLIS (Van Zee and
// van de Geijn, 2015). Rows are not packed: eight are few enough to be read in place.
#pragma once

#include "simd.h"
#include "tile.h"

#if defined(PLX_BFMMLA)
#include <type_traits>

#include "squares_neon.h"
#endif

namespace plx::PLX_ISA {
namespace {

// The kinds of weights: kInputs inputs in a step of kStepBytes, multiplied in kProducts products; kItem is the bytes of an
// activation, and place(product) the offset of a product's activation in those of the step.

struct Float32Weights {
  static constexpr int kInputs = 1, kProducts = 1;
  static constexpr int64_t kItem = kFloatBytes;
  static constexpr int64_t place(int) { return 0; }
  PLX_INLINE Floats read(const char* w, int, int vector) { return load(reinterpret_cast<const float*>(w) + kLanes * vector); }
  PLX_INLINE void add(Floats& sum, Floats activations, Floats weights) { add_product(sum, activations, weights); }
};

// The second input of a pair before the first, in the order of the processor's own bfloat16 products.
struct Bfloat16Weights {
  static constexpr int kInputs = 2, kProducts = 2;
  static constexpr int64_t kItem = kFloatBytes;
  static constexpr int64_t place(int product) { return product == 0 ? kItem : 0; }
  PLX_INLINE Floats read(const char* w, int product, int vector) {
    const Words pairs = load_words(w + kFloatBytes * kLanes * vector);
    return product == 0 ? widen_odd(pairs) : widen_even(pairs);
  }
  PLX_INLINE void add(Floats& sum, Floats activations, Floats weights) { add_product(sum, activations, weights); }
};

#if defined(PLX_PAIRS)
struct Bfloat16Pairs {  // bfloat16 weights with bfloat16 activations
  static constexpr int kInputs = 2, kProducts = 1;
  static constexpr int64_t kItem = kHalfBytes;
  static constexpr int64_t place(int) { return 0; }
#if !defined(PLX_BFMMLA)  // for which squares_neon.h has the products
  PLX_INLINE Floats read(const char* w, int, int) { return load(reinterpret_cast<const float*>(w)); }
  PLX_INLINE void add(Floats& sum, Floats activations, Floats weights) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(activations));
  }
#endif
};
#endif

template <class Weights, int R, int P>
PLX_INLINE void add_step(const char* const* x, int64_t stride, const char* const* w, int first, Floats (&sums)[R][P * kVectors]) {
  PLX_UNROLL for (int product = first; product < Weights::kProducts; ++product) {
    Floats weights[P * kVectors];
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) weights[v] = Weights::read(w[v / kVectors], product, v % kVectors);
    PLX_UNROLL for (int r = 0; r < R; ++r) {
      // Four rows from each pointer, at 0, 1, 2 and 3 strides: x86 scales an index by 1 and 2, and a register holds 3 strides.
      const Floats activations = splat(read_float(x[r / 4] + r % 4 * stride + Weights::place(product)));
      PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) Weights::add(sums[r][v], activations, weights[v]);
    }
  }
}

#if defined(PLX_NEON)
constexpr int kBlockInputs = kLanes;  // inputs whose activations are read as one vector, and multiplied by a lane of it

// Adds the products of the inputs of a block from kInput on. A recursion, since a lane has to be a constant.
template <class Weights, int R, int P, int kInput = 0>
PLX_INLINE void add_block(const Floats (&activations)[R], const char* const* w, Floats (&sums)[R][P * kVectors]) {
  constexpr int kProduct = kInput % Weights::kInputs, kFirst = kInput - kProduct;
  constexpr int kLane = kFirst + static_cast<int>(Weights::place(kProduct) / kFloatBytes);
  PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
    const Floats weights = Weights::read(w[v / kVectors] + kFirst / Weights::kInputs * kStepBytes, kProduct, v % kVectors);
    PLX_UNROLL for (int r = 0; r < R; ++r) add_lane_product<kLane>(sums[r][v], weights, activations[r]);
  }
  if constexpr (kInput + 1 < kBlockInputs) add_block<Weights, R, P, kInput + 1>(activations, w, sums);
}
#endif

template <class Weights, int R, int P>
void multiply_by_rows(const Tile& tile) {
  Floats sums[R][P * kVectors];
  PLX_UNROLL for (int r = 0; r < R; ++r) {
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
      const Sums& panel = tile.sums[v / kVectors];
      sums[r][v] = load(panel.from + r * panel.from_stride + v % kVectors * kLanes);
    }
  }
  constexpr int kPointers = (R + 3) / 4;
  const char *x[kPointers], *w[P];
  PLX_UNROLL for (int i = 0; i < kPointers; ++i) x[i] = tile.x + 4 * i * tile.x_stride;
  PLX_UNROLL for (int p = 0; p < P; ++p) w[p] = tile.w[p];
  int64_t ahead = tile.ahead, step = tile.steps - tile.is_odd;
#if defined(PLX_NEON)
  constexpr int64_t kBlockSteps = kBlockInputs / Weights::kInputs;
  for (; step >= kBlockSteps; step -= kBlockSteps, ahead += kBlockSteps * (tile.pace - kStepBytes)) {
    PLX_UNROLL for (int i = 0; i < P * kBlockSteps; ++i) __builtin_prefetch(w[i % P] + ahead + i / P * tile.pace, 0, 2);
    Floats activations[R];
    PLX_UNROLL for (int r = 0; r < R; ++r) activations[r] = load(reinterpret_cast<const float*>(x[r / 4] + r % 4 * tile.x_stride));
    add_block<Weights, R, P>(activations, w, sums);
    PLX_UNROLL for (int i = 0; i < kPointers; ++i) x[i] += kBlockInputs * Weights::kItem;
    PLX_UNROLL for (int p = 0; p < P; ++p) w[p] += kBlockSteps * kStepBytes;
  }
#endif
  for (; step > 0; --step, ahead += tile.pace - kStepBytes) {
    PLX_UNROLL for (int p = 0; p < P; ++p) __builtin_prefetch(w[p] + ahead, 0, 2);
    add_step<Weights, R, P>(x, tile.x_stride, w, 0, sums);
    PLX_UNROLL for (int i = 0; i < kPointers; ++i) x[i] += Weights::kInputs * Weights::kItem;
    PLX_UNROLL for (int p = 0; p < P; ++p) w[p] += kStepBytes;
  }
  if (tile.is_odd) add_step<Weights, R, P>(x, tile.x_stride, w, 1, sums);
  PLX_UNROLL for (int r = 0; r < R; ++r) {
    PLX_UNROLL for (int v = 0; v < P * kVectors; ++v) {
      const Sums& panel = tile.sums[v / kVectors];
      save(panel.to + r * panel.stride + v % kVectors * kLanes, sums[r][v]);
    }
  }
}

template <class Weights, int R, int P>
void multiply_tile(const Tile& tile) {
#if defined(PLX_BFMMLA)
  if constexpr (std::is_same_v<Weights, Bfloat16Pairs>) {
    multiply_squares<R, P>(tile);
  } else {
    multiply_by_rows<Weights, R, P>(tile);
  }
#else
  multiply_by_rows<Weights, R, P>(tile);
#endif
}

template <class Weights, int R>
void multiply_rows(int panels, const Tile& tile) {
  if constexpr (count_panels(R) >= 4) {
    if (panels == 4) return multiply_tile<Weights, R, 4>(tile);
  }
  if constexpr (count_panels(R) >= 2) {
    if (panels == 2) return multiply_tile<Weights, R, 2>(tile);
  }
  multiply_tile<Weights, R, 1>(tile);
}

template <class Weights>
void multiply_dense(int rows, int panels, const Tile& tile) {
  switch (rows) {
    case 1: return multiply_rows<Weights, 1>(panels, tile);
    case 2: return multiply_rows<Weights, 2>(panels, tile);
    case 3: return multiply_rows<Weights, 3>(panels, tile);
    case 4: return multiply_rows<Weights, 4>(panels, tile);
    case 5: return multiply_rows<Weights, 5>(panels, tile);
    case 6: return multiply_rows<Weights, 6>(panels, tile);
#if defined(__AVX512F__)
    case 7: return multiply_rows<Weights, 7>(panels, tile);
    case 8: return multiply_rows<Weights, 8>(panels, tile);
    case 9: return multiply_rows<Weights, 9>(panels, tile);
    case 10: return multiply_rows<Weights, 10>(panels, tile);
    case 11: return multiply_rows<Weights, 11>(panels, tile);
    default: return multiply_rows<Weights, 12>(panels, tile);
#else
    default: __builtin_unreachable();
#endif
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
