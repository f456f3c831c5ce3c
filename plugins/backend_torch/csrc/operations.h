// Operations over all rows of a step, shared among threads.
#pragma once

#include "kernels.h"
#include "pool.h"

#define PLX_EXPORT extern "C" __attribute__((visibility("default")))

namespace plx {

enum Status : int32_t { kOk = 0, kOutOfMemory = 1 };

constexpr int64_t kShareWork = 1 << 13;  // the least work of a task of `share_rows`, in simple operations

// Calls body(row) for each row, with several rows in a task if a row is little work.
template <class Body>
void share_rows(int64_t rows, int64_t work, Body&& body) {
  const int64_t step = divide_up(kShareWork, work > 0 ? work : 1);
  share(divide_up(rows, step), [&](int64_t task) {
    for (int64_t row = task * step; row < least(rows, (task + 1) * step); ++row) body(row);
  });
}

Status multiply_rows(const Weight& weight, const Rows& rows, const Output& output);
Status multiply_gated(const Weight& weight, const Rows& rows, const Output& output, int32_t gate);
Status attend_rows(const Attention& attention);

struct AdapterRows;

struct AdapterStep {  // the LoRA adapters of a step; rows without one are in no group
  const AdapterRows* groups;
  int64_t count;
};

// Adds to the product of a matrix, by its number, what the adapters of a step make of its input; the count of rows is not used.
// Without adapters, or for a matrix that takes none, whose number is negative, it does nothing.
Status adapt_rows(const AdapterStep* step, int32_t matrix, const Rows& rows, const Output& output);

struct RowPool {  // the keys, or the values, of a layer: [slots][heads][dim]
  void* data;
  uint16_t* scales;  // of int8: [slots][heads]
  int32_t kind;
  int64_t heads, dim;
};

void store_row(const float* row, int64_t slot, const RowPool& pool);

}  // namespace plx
