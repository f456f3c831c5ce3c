// Products cut into pieces: some rows by some panels.
#include <cstdlib>

#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

thread_local Scratch scratch;

constexpr int64_t kPieceWork = 1 << 16;  // multiplications that are worth handing to another thread, at the least
constexpr int64_t kPackedRows = 19;      // so many make four tiles, and are worth packing; widening bfloat16 undoes it
constexpr int64_t kPackedOutputs = 2048;  // of fewer the products gain less than packing costs
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

// Puts the rows of each tile of each part side by side.
const float* pack_rows(const Rows& given, int64_t in, int64_t part) {
  float* const packed = reinterpret_cast<float*>(scratch.take(given.count * in * 4));
  share_rows(divide_up(given.count, part), part * in, [&](int64_t number) {
    each_tile(number * part, least(given.count, (number + 1) * part), kTileRows, [&](int64_t row, int64_t rows) {
      for (int64_t r = 0; r < rows; ++r) {
        const float* const x = given.x + (row + r) * given.stride;
        float* const out = packed + row * in + r;
        for (int64_t i = 0; i < in; ++i) out[i * rows] = x[i];
      }
    });
  });
  return packed;
}

Input prepare_input(const Weight& weight, const Rows& given, const Cut& cut) {
  Input input{given.x, given.stride, nullptr, nullptr, nullptr, nullptr};
  const int64_t rows = given.count;
  if (weight.kind == kFloat32 && rows >= kPackedRows && weight.out >= kPackedOutputs) input.packed = pack_rows(given, weight.in, cut.rows);
  if (weight.kind == kFloat32 || weight.kind == kBfloat16) return input;
  const int64_t groups = divide_up(weight.in, kGroup);
  const int64_t codes = rows * groups * kGroup * (weight.kind == kInt8 ? 2 : 1);
  char* const room = scratch.take(codes + rows * groups * 8);
  input.codes = room;
  input.scales = reinterpret_cast<float*>(room + codes);
  input.sums = weight.kind == kInt4 ? input.scales + rows * groups : nullptr;
  share_rows(rows, weight.in, [&](int64_t row) { kernels->round_input(input, weight.kind, row, weight.in); });
  return input;
}

}  // namespace

void multiply_rows(const Weight& weight, const Rows& given, const Output& output) {
  if (given.count <= 0) return;
  const int64_t rows = given.count, panels = divide_up(weight.out, kPanel);
  const Cut cut = cut_product(weight, rows, panels);
  const Input input = prepare_input(weight, given, cut);
  share(cut.row_parts * cut.panel_parts, [&](int64_t piece) {
    const int64_t row = piece / cut.panel_parts * cut.rows, first = piece % cut.panel_parts * cut.panels;
    const int64_t end = least(panels, first + cut.panels);
    for (int64_t panel = first; panel < end; panel += 2) {
      const Strip both[2] = {{panel, output}, {panel + 1, output}};
      kernels->multiply(weight, input, both, least(2, end - panel), row, least(rows, row + cut.rows));
    }
  });
}

// The gate's panel and the panel it gates, one after the other, while the first is still in the cache.
void multiply_gated(const Weight& weight, const Rows& given, const Output& output, int32_t gate) {
  if (given.count <= 0) return;
  const int64_t rows = given.count, panels = weight.out / 2 / kPanel;
  const Cut cut = cut_product(weight, rows, panels);
  const Input input = prepare_input(weight, given, cut);
  share(cut.row_parts * cut.panel_parts, [&](int64_t piece) {
    const int64_t begin = piece / cut.panel_parts * cut.rows, end = least(rows, begin + cut.rows);
    const int64_t first = piece % cut.panel_parts * cut.panels;
    alignas(64) float both[96 * 2 * kPanel];
    for (int64_t panel = first; panel < least(panels, first + cut.panels); ++panel) {
      Strip strips[2];
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t of = panel + half * panels;
        strips[half] = {of, {both + half * kPanel - begin * 2 * kPanel - of * kPanel, 2 * kPanel, nullptr, 0}};
      }
      kernels->multiply(weight, input, strips, 2, begin, end);
      for (int64_t row = begin; row < end; ++row) {
        const float* const gates = both + (row - begin) * 2 * kPanel;
        kernels->gate(gate, gates, gates + kPanel, kPanel, output.out + row * output.stride + panel * kPanel);
      }
    }
  });
}

}  // namespace plx
