// A register tile of a product: some rows by some panels of outputs.
#pragma once

#include "../kernels.h"

// Products of bfloat16 by bfloat16, with VDPBF16PS or BFMMLA.
#if defined(PLX_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PLX_BFMMLA
#endif
#if defined(__AVX512BF16__) || defined(PLX_BFMMLA)
#define PLX_PAIRS
#endif

namespace plx::PLX_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif

// The number of panels of a tile of `rows` rows, limited by the registers for sums.
constexpr int count_panels(int64_t rows) {
#if defined(__AVX512F__)
  return rows <= 6 ? 4 : 2;
#elif defined(PLX_NEON)
  return rows <= 1 ? 4 : rows <= 2 ? 2 : 1;
#else
  return rows <= 3 ? 2 : 1;
#endif
}

// The number of panels of the next tile if `panels` (1 to 4) are left: a power of two.
constexpr int64_t round_down(int64_t panels) { return panels == 3 ? 2 : panels; }

struct Sums {  // the sums of some rows and a panel
  float* to;
  int64_t stride;     // numbers between rows
  const float* from;  // the initial values
  int64_t from_stride;
};

struct Tile {
  const char* x;     // the activations of the first row
  int64_t x_stride;  // bytes between rows
  const char* w[kPanelGroup];  // the weights of each panel
  Sums sums[kPanelGroup];
  int64_t steps;
  bool is_odd;    // the last step has one input instead of two
  int64_t ahead;  // bytes from a step's weights to those that are prefetched meanwhile
  int64_t pace;   // bytes prefetched per step
};

// Multiplies rows of float32 by panels of float32: at most kTileRows rows, and 1, 2 or 4 panels up to count_panels(rows).
void multiply_float_tile(int rows, int panels, const Tile&);
#if defined(PLX_PAIRS)
void multiply_pair_tile(int rows, int panels, const Tile&);  // the same in bfloat16, with two inputs in a step
#endif

}  // namespace plx::PLX_ISA
