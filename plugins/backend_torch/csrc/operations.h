// Operations over all rows of a step, which share themselves out among threads.
#pragma once

#include "kernels.h"
#include "pool.h"

#define PLX_EXPORT extern "C" __attribute__((visibility("default")))

namespace plx {

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(row) for each row, several in a piece when a row is little work.
template <class Body>
void share_rows(int64_t rows, int64_t work, Body&& body) {
  const int64_t step = divide_up(1 << 13, work > 0 ? work : 1);
  share(divide_up(rows, step), [&](int64_t piece) {
    for (int64_t row = piece * step; row < least(rows, (piece + 1) * step); ++row) body(row);
  });
}

struct Rows {  // float32, with a stride between them
  const float* x;
  int64_t stride, count;
};

void multiply_rows(const Weight& weight, const Rows& rows, const Output& output);
void multiply_gated(const Weight& weight, const Rows& rows, const Output& output, int32_t gate);
void attend_rows(const Attention& attention);
void store_row(const float* row, int64_t slot, int64_t width, int32_t kind, void* pool);

}  // namespace plx
