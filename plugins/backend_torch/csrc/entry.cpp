// The C interface, except for functions defined next to their implementation.
#include <sys/mman.h>

#include <atomic>

#include "operations.h"
#include "pool.h"

using namespace plx;

PLX_EXPORT int32_t plx_interface() { return 10; }

// Asks the system for large pages; it may ignore that.
PLX_EXPORT void plx_enlarge(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr int64_t kHuge = 2 << 20;
  (void)madvise(data, static_cast<size_t>(bytes / kHuge * kHuge), MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

// The sizes of records that callers make; layer.cpp has those of layers.
PLX_EXPORT int64_t plx_weight_bytes() { return sizeof(Weight); }
PLX_EXPORT int64_t plx_table_bytes() { return sizeof(Table); }
PLX_EXPORT int64_t plx_attention_bytes() { return sizeof(Attention); }

PLX_EXPORT int32_t plx_threads() { return count_threads(); }
PLX_EXPORT void plx_set_threads(int32_t count) { set_threads(count); }

PLX_EXPORT int32_t plx_multiply(const Weight* weight, const float* x, int64_t stride, int64_t rows, float* out,
                                const float* residual, int64_t residual_stride) {
  return multiply_rows(*weight, Rows{x, stride, rows}, Output{out, weight->out, residual, residual_stride});
}

PLX_EXPORT int32_t plx_multiply_gated(const Weight* weight, const float* x, int64_t stride, int64_t rows, float* out,
                                      int32_t gate) {
  return multiply_gated(*weight, Rows{x, stride, rows}, Output{out, weight->out / 2, nullptr, 0}, gate);
}

// Returns the index of the first id that is out of range, without writing anything, or -1.
PLX_EXPORT int64_t plx_gather(const Weight* weight, const int64_t* ids, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= weight->out) return i;
  }
  share_rows(count, weight->in * 8, [&](int64_t i) { kernels->gather(*weight, ids[i], out + i * weight->in); });
  return -1;
}

PLX_EXPORT void plx_normalize(const float* x, int64_t stride, float* residual, const float* weight, float offset, float eps,
                              int64_t rows, int64_t inner, int64_t dim, float* out) {
  share_rows(rows * inner, dim, [&](int64_t i) {
    const int64_t at = i / inner * stride + i % inner * dim;
    kernels->normalize(x + at, residual ? residual + i * dim : nullptr, weight, offset, eps, dim, out + i * dim);
  });
}

PLX_EXPORT void plx_rotate(float* x, int64_t stride, const float* cos, const float* sin, int64_t tokens, int64_t heads,
                           int64_t dim, int64_t half) {
  share_rows(tokens, heads * half, [&](int64_t token) {
    for (int64_t head = 0; head < heads; ++head) {
      kernels->rotate(x + token * stride + head * dim, cos + token * half, sin + token * half, half);
    }
  });
}

PLX_EXPORT void plx_gate(int32_t gate, const float* gates, int64_t gate_stride, const float* values, int64_t value_stride,
                         int64_t rows, int64_t count, float* out) {
  share_rows(rows, count * 4, [&](int64_t row) {
    kernels->gate(gate, Gating{gates + row * gate_stride, 0, values + row * value_stride, 0, out + row * count, 0, 1, count});
  });
}

// Writes for each row the index of the largest number, the first of equal ones, and the number; NaN if the row has NaN.
PLX_EXPORT void plx_find_largest(const float* x, int64_t rows, int64_t count, int64_t* places, float* most) {
  share(rows, [&](int64_t row) { places[row] = kernels->find_largest(x + row * count, count, most + row); });
}

// Reads `count` numbers with almost no arithmetic, to measure the bandwidth of memory.
PLX_EXPORT float plx_read(const float* x, int64_t count) {
  constexpr int64_t kStep = 1 << 14;
  std::atomic<int64_t> found{0};
  share(count / kStep, [&](int64_t task) { found.fetch_add(kernels->read(x + task * kStep, kStep) != 0.0f); });
  return static_cast<float>(found.load());
}
