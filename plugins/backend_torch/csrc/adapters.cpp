// Adds what the LoRA adapters of a step add to a product: each row's own, those of several adapters in one call.
#include "operations.h"
#include "scratch.h"

namespace plx {

struct Adapter {
  const LowRank* parts;   // in the order of the matrices that they are added to
  const int32_t* begins;  // those of matrix m are parts[begins[m]] .. parts[begins[m + 1] - 1]
};

struct AdapterRows {  // rows of a step with the same adapter
  const Adapter* adapter;
  const int32_t* places;
  int64_t count;
};

namespace {

constexpr int64_t kTileRows = 4;      // the fewest rows of a task, which read the matrices once
constexpr int64_t kAdapterRows = 16;  // the most rows of a task

thread_local Scratch scratch;

// Adds a part to some rows of a group; returns false if there is no memory for what is between its products.
bool add_part(const LowRank& part, const AdapterRows& group, int64_t first, int64_t count, const Rows& rows, const Output& output) {
  float* const small = reinterpret_cast<float*>(scratch.take(kAdapterRows * part.rank * kFloatBytes));
  if (small) kernels->adapt(part, group.places + first, Rows{rows.x, rows.stride, count}, output, small);
  return small != nullptr;
}

}  // namespace

Status adapt_rows(const AdapterStep* step, int32_t matrix, const Rows& rows, const Output& output) {
  if (!step || matrix < 0) return kOk;
  int64_t most_parts = 0, most_rows = 0;
  for (int64_t i = 0; i < step->count; ++i) {
    const AdapterRows& group = step->groups[i];
    most_parts = most(most_parts, group.adapter->begins[matrix + 1] - group.adapter->begins[matrix]);
    most_rows = most(most_rows, group.count);
  }
  const bool is_wide = step->count * most_parts >= 2 * count_threads();
  const int64_t height = is_wide ? kAdapterRows : kTileRows, blocks = divide_up(most_rows, height);
  bool lacks_memory = false;
  share(step->count * most_parts * blocks, [&](int64_t index) {
    const AdapterRows& group = step->groups[index / (most_parts * blocks)];
    const int64_t part = group.adapter->begins[matrix] + index / blocks % most_parts, first = index % blocks * height;
    if (part >= group.adapter->begins[matrix + 1] || first >= group.count) return;
    const bool is_done = add_part(group.adapter->parts[part], group, first, least(height, group.count - first), rows, output);
    if (!is_done) __atomic_store_n(&lacks_memory, true, __ATOMIC_RELAXED);
  });
  return lacks_memory ? kOutOfMemory : kOk;
}

}  // namespace plx

using namespace plx;

// Adds to the product of a matrix, `out`, what the adapters of a step make of its input.
PLX_EXPORT int32_t plx_adapt(const AdapterStep* step, int32_t matrix, const float* x, int64_t stride, float* out, int64_t out_stride) {
  return adapt_rows(step, matrix, Rows{x, stride, 0}, Output{out, out_stride, nullptr, 0});
}

// The sizes of records that callers make.
PLX_EXPORT int64_t plx_low_rank_bytes() { return sizeof(LowRank); }
PLX_EXPORT int64_t plx_adapter_bytes() { return sizeof(Adapter); }
PLX_EXPORT int64_t plx_adapter_rows_bytes() { return sizeof(AdapterRows); }
PLX_EXPORT int64_t plx_adapter_step_bytes() { return sizeof(AdapterStep); }
