// Splits products into tasks: blocks of some rows by some panels.
#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

thread_local Scratch scratch;

constexpr int64_t kTaskWork = 1 << 16;   // the fewest multiplications that are worth a task
constexpr int64_t kRowBytes = 1 << 18;   // bytes of activations of a task, which stay in the second-level cache
constexpr int64_t kFewRows = 12;         // rows of a task even if their activations take more than kRowBytes
constexpr int64_t kTaskRows = 96;        // the most rows of a task
constexpr int64_t kTasksPerThread = 16;  // the fewest tasks per thread, if there are enough panels: cores differ in speed
constexpr int64_t kTaskPanels = 2;       // the panels of a task are a multiple of this

struct Blocking {  // the rows and panels of a product's tasks
  int64_t rows, row_blocks, panels, panel_blocks;
  int64_t tasks() const { return row_blocks * panel_blocks; }
};

// Returns the panels that could be computed in the time in which threads are idle at the end, if all are equally fast.
int64_t count_idle(const Blocking& blocking, int64_t panels) {
  const int64_t threads = count_threads(), turns = divide_up(divide_up(panels, blocking.panels) * blocking.row_blocks, threads);
  return turns * threads * blocking.panels - panels * blocking.row_blocks;
}

Blocking choose_blocking(const Weight& weight, int64_t rows, int64_t panels) {
  Blocking best{};
  best.row_blocks = divide_up(rows, least(kTaskRows, kRowBytes / (weight.in * kFloatBytes) + kFewRows));
  best.rows = divide_up(rows, best.row_blocks);
  const int64_t fewest = divide_up(kTaskWork, best.rows * kPanel * weight.in);
  const int64_t fair = divide_up(panels * best.row_blocks, kTasksPerThread * count_threads());
  best.panels = least(panels, divide_up(most(fair, fewest), kTaskPanels) * kTaskPanels);
  for (int64_t some = best.panels - kTaskPanels; some >= most(kTaskPanels, fewest); some -= kTaskPanels) {
    Blocking other = best;
    other.panels = some;
    if (count_idle(other, panels) < count_idle(best, panels)) best = other;
  }
  best.panel_blocks = divide_up(panels, best.panels);
  return best;
}

// Converts the activations to the form that the kernel reads; returns false if there is no memory for that.
bool prepare_input(const Weight& weight, const Rows& rows, Input& input) {
  const int64_t groups = divide_up(weight.in, kGroup);
  const int64_t bytes = divide_up(kernels->input_bytes(weight), kCacheLine) * kCacheLine;
  input = Input{rows.x, rows.stride * kFloatBytes, nullptr, nullptr};
  if (bytes == 0) return true;
  char* const room = scratch.take(rows.count * (bytes + groups * 2 * kFloatBytes));  // and scales and sums
  if (!room) return false;
  input.x = room;
  input.stride = bytes;
  input.scales = reinterpret_cast<float*>(room + rows.count * bytes);
  input.sums = weight.kind == kInt4 || weight.kind == kInt8Low ? input.scales + rows.count * groups : nullptr;
  share_rows(rows.count, weight.in, [&](int64_t row) { kernels->round_input(weight, rows.x + row * rows.stride, input, row); });
  return true;
}

}  // namespace

Status multiply_rows(const Weight& weight, const Rows& given, const Output& output) {
  if (given.count <= 0) return kOk;
  const int64_t panels = divide_up(weight.out, kPanel);
  const Blocking blocking = choose_blocking(weight, given.count, panels);
  Input input;
  if (!prepare_input(weight, given, input)) return kOutOfMemory;
  share(blocking.tasks(), [&](int64_t task) {
    const int64_t row = task / blocking.panel_blocks * blocking.rows, first = task % blocking.panel_blocks * blocking.panels;
    const int64_t end = least(panels, first + blocking.panels);
    for (int64_t panel = first; panel < end; panel += kPanelGroup) {
      PanelOutput list[kPanelGroup];
      for (int64_t i = 0; i < kPanelGroup; ++i) list[i] = {panel + i, output};
      const PanelOutputs outputs{list, least(kPanelGroup, end - panel), panel + kPanelGroup};
      kernels->multiply(weight, input, outputs, row, least(given.count, row + blocking.rows));
    }
  });
  return kOk;
}

namespace {

// Some rows of a gated product. The panels of the gate and those that they gate are multiplied together, so that the products
// are still in the cache for the gate.
struct GatedBlock {
  const Weight& weight;
  const Input& input;
  const Output& output;
  int32_t gate;
  int64_t begin, end;  // rows
};

void multiply_gated_panels(const GatedBlock& block, int64_t panel, int64_t count) {
  constexpr int64_t kWidth = kPanelGroup * kPanel;
  const int64_t half = block.weight.out / 2 / kPanel;
  alignas(kCacheLine) float products[kTaskRows * kWidth];  // [rows][panel][gate, value][kPanel]
  PanelOutput list[kPanelGroup];
  for (int64_t i = 0; i < 2 * count; ++i) {
    const int64_t of = panel + i / 2 + i % 2 * half;
    list[i] = {of, {products + i * kPanel - block.begin * kWidth - of * kPanel, kWidth, nullptr, 0}};
  }
  kernels->multiply(block.weight, block.input, PanelOutputs{list, 2 * count, panel + count}, block.begin, block.end);
  for (int64_t i = 0; i < count; ++i) {
    const float* const gates = products + 2 * i * kPanel;
    float* const out = block.output.out + block.begin * block.output.stride + (panel + i) * kPanel;
    kernels->gate(block.gate, Gating{gates, kWidth, gates + kPanel, kWidth, out, block.output.stride, block.end - block.begin, kPanel});
  }
}

}  // namespace

Status multiply_gated(const Weight& weight, const Rows& given, const Output& output, int32_t gate) {
  if (given.count <= 0) return kOk;
  constexpr int64_t kPairs = kPanelGroup / 2;  // panels of the gate, with as many that they gate
  const int64_t panels = weight.out / 2 / kPanel;
  const Blocking blocking = choose_blocking(weight, given.count, panels);
  Input input;
  if (!prepare_input(weight, given, input)) return kOutOfMemory;
  share(blocking.tasks(), [&](int64_t task) {
    const int64_t row = task / blocking.panel_blocks * blocking.rows, first = task % blocking.panel_blocks * blocking.panels;
    const GatedBlock block{weight, input, output, gate, row, least(given.count, row + blocking.rows)};
    const int64_t end = least(panels, first + blocking.panels);
    for (int64_t panel = first; panel < end; panel += kPairs) multiply_gated_panels(block, panel, least(kPairs, end - panel));
  });
  return kOk;
}

}  // namespace plx
