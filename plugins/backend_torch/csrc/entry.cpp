// The C interface: how an operation is cut into pieces, and what the pieces are.
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "pool.h"

#define PLX_EXPORT extern "C" __attribute__((visibility("default")))

namespace plx {
namespace {

// Memory of the calling thread that grows as it is needed and goes with it.
class Scratch {
 public:
  ~Scratch() { free(data_); }
  char* take(int64_t bytes) {
    if (bytes > size_) {
      free(data_);
      size_ = (bytes + 63) / 64 * 64;
      data_ = static_cast<char*>(aligned_alloc(64, static_cast<size_t>(size_)));
      if (!data_) abort();
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local Scratch scratch;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kPieceWork = 1 << 16;  // multiplications that are worth handing to another thread, at the least
constexpr int64_t kRowBytes = 1 << 18;   // activations that stay in a second-level cache while the weights go by

struct Cut {  // of a product: rows times panels
  int64_t rows, row_parts, panels, panel_parts;
};

Cut cut_product(const Weight& weight, int64_t rows, int64_t panels) {
  Cut cut;
  cut.row_parts = divide_up(rows, least(96, kRowBytes / (weight.in * 4) + 12));
  cut.rows = divide_up(rows, cut.row_parts);
  const int64_t work = cut.rows * kPanel * weight.in;
  const int64_t even = divide_up(panels * cut.row_parts, 16LL * count_threads());
  cut.panels = least(panels, even > divide_up(kPieceWork, work) ? even : divide_up(kPieceWork, work));
  cut.panel_parts = divide_up(panels, cut.panels);
  return cut;
}

template <class Body>
void share_rows(int64_t rows, int64_t work, Body&& body) {
  const int64_t step = least(rows, divide_up(1 << 13, work > 0 ? work : 1));
  share(divide_up(rows, step > 0 ? step : 1), [&](int64_t piece) {
    for (int64_t row = piece * step; row < least(rows, (piece + 1) * step); ++row) body(row);
  });
}

Input prepare_input(const Weight& weight, const float* x, int64_t stride, int64_t rows) {
  Input input{x, stride, nullptr, nullptr, nullptr};
  if (weight.kind != kInt8 && weight.kind != kInt4) return input;
  const int64_t groups = divide_up(weight.in, kGroup);
  const int64_t codes = rows * groups * kGroup * (weight.kind == kInt8 ? 2 : 1);
  char* const room = scratch.take(codes + rows * groups * 8);
  input.codes = room;
  input.scales = reinterpret_cast<float*>(room + codes);
  input.sums = weight.kind == kInt4 ? input.scales + rows * groups : nullptr;
  share_rows(rows, weight.in, [&](int64_t row) { kernels->round_input(input, weight.kind, row, weight.in); });
  return input;
}

void multiply(const Weight& weight, const Input& input, const Output& output, int64_t rows) {
  const int64_t panels = divide_up(weight.out, kPanel);
  const Cut cut = cut_product(weight, rows, panels);
  share(cut.row_parts * cut.panel_parts, [&](int64_t piece) {
    const int64_t row = piece / cut.panel_parts * cut.rows, first = piece % cut.panel_parts * cut.panels;
    for (int64_t panel = first; panel < least(panels, first + cut.panels); ++panel) {
      kernels->multiply(weight, input, output, panel, row, least(rows, row + cut.rows));
    }
  });
}

// The gate's panel and the panel it gates, one after the other, while the first is still in the cache.
void multiply_gated(const Weight& weight, const Input& input, const Output& output, int64_t rows, int32_t gate) {
  const int64_t panels = weight.out / 2 / kPanel;
  const Cut cut = cut_product(weight, rows, panels);
  share(cut.row_parts * cut.panel_parts, [&](int64_t piece) {
    const int64_t begin = piece / cut.panel_parts * cut.rows, end = least(rows, begin + cut.rows);
    const int64_t first = piece % cut.panel_parts * cut.panels;
    alignas(64) float both[96 * 2 * kPanel];
    for (int64_t panel = first; panel < least(panels, first + cut.panels); ++panel) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t of = panel + half * panels;
        const Output aside{both + half * kPanel - begin * 2 * kPanel - of * kPanel, 2 * kPanel, nullptr, 0};
        kernels->multiply(weight, input, aside, of, begin, end);
      }
      for (int64_t row = begin; row < end; ++row) {
        const float* const gates = both + (row - begin) * 2 * kPanel;
        kernels->gate(gate, gates, gates + kPanel, kPanel, output.out + row * output.stride + panel * kPanel);
      }
    }
  });
}

}  // namespace
}  // namespace plx

using namespace plx;

PLX_EXPORT int32_t plx_interface() { return 1; }
PLX_EXPORT const char* plx_isa() { return kernels->name; }
PLX_EXPORT int32_t plx_threads() { return count_threads(); }
PLX_EXPORT void plx_set_threads(int32_t count) { set_threads(count); }

PLX_EXPORT void plx_multiply(const Weight* weight, const float* x, int64_t stride, int64_t rows, float* out,
                             const float* residual, int64_t residual_stride) {
  if (rows <= 0 || weight->out <= 0) return;
  multiply(*weight, prepare_input(*weight, x, stride, rows), Output{out, weight->out, residual, residual_stride}, rows);
}

PLX_EXPORT void plx_multiply_gated(const Weight* weight, const float* x, int64_t stride, int64_t rows, float* out, int32_t gate) {
  if (rows <= 0 || weight->out <= 0) return;
  const Output output{out, weight->out / 2, nullptr, 0};
  multiply_gated(*weight, prepare_input(*weight, x, stride, rows), output, rows, gate);
}

PLX_EXPORT void plx_gather(const Weight* weight, const int64_t* ids, int64_t count, float* out) {
  share_rows(count, weight->in * 8, [&](int64_t i) { kernels->gather(*weight, ids[i], out + i * weight->in); });
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
    kernels->gate(gate, gates + row * gate_stride, values + row * value_stride, count, out + row * count);
  });
}

PLX_EXPORT float plx_read(const float* x, int64_t count) {
  constexpr int64_t kStep = 1 << 14;
  float sums[64] = {};
  const int64_t pieces = count / kStep;
  share(pieces, [&](int64_t i) { sums[i % 64] = kernels->read(x + i * kStep, kStep); });
  return sums[0];
}
