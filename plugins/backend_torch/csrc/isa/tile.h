// A tile of a product: some rows by some panels of outputs.
#pragma once

#include "../kernels.h"

namespace plx::PLX_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 6;
#endif

// How many panels a tile has: as many as there are registers for sums.
constexpr int count_panels(int64_t rows) {
#if defined(__AVX512F__)
  return rows <= 6 ? 4 : 2;
#else
  return rows <= 3 ? 2 : 1;
#endif
}

// The panels of a tile where so many are left: a power of two.
constexpr int64_t round_down(int64_t panels) { return panels == 3 ? 2 : panels; }

struct Sums {  // those of some rows and a panel
  float* to;
  int64_t stride;     // between rows
  const float* from;  // what they begin with
  int64_t from_stride;
};

struct Tile {
  const char* x;     // of the first row
  int64_t x_stride;  // bytes between rows
  const char* w[kPanelGroup];  // of each panel
  Sums sums[kPanelGroup];
  int64_t steps;
  bool is_odd;    // the last step has one input instead of two
  int64_t ahead;  // how many bytes further on the weights lie that are fetched meanwhile
  int64_t pace;   // bytes of them in a step
};

// Multiplies rows of float32 by panels of float32; at most kTileRows and count_panels(rows) of them, no three panels.
void multiply_float_tile(int rows, int panels, const Tile&);

}  // namespace plx::PLX_ISA
