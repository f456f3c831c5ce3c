// Products cut into tasks: some rows by some panels.
#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

thread_local Scratch scratch;

constexpr int64_t kTaskWork = 1 << 16;   // multiplications that are worth handing to another thread, at the least
constexpr int64_t kRowBytes = 1 << 18;   // activations that stay in a second-level cache while the weights go by
constexpr int64_t kTaskRows = 96;        // at most
constexpr int64_t kTasksPerThread = 16;  // at least, if there are panels for them: cores are not equally fast

struct Blocking {  // of a product: the rows and panels of a task
  int64_t rows, row_blocks, panels, panel_blocks;
  int64_t tasks() const { return row_blocks * panel_blocks; }
};

// Returns how many of the last thread's panels no other thread works beside, if all threads are equally fast.
int64_t count_idle(const Blocking& blocking, int64_t panels) {
  const int64_t threads = count_threads(), turns = divide_up(divide_up(panels, blocking.panels) * blocking.row_blocks, threads);
  return turns * threads * blocking.panels - panels * blocking.row_blocks;
}

Blocking choose_blocking(const Weight& weight, int64_t rows, int64_t panels, int64_t group) {
  Blocking best{};
  best.row_blocks = divide_up(rows, least(kTaskRows, kRowBytes / (weight.in * 4) + 12));
  best.rows = divide_up(rows, best.row_blocks);
  const int64_t fewest = divide_up(kTaskWork, best.rows * kPanel * weight.in);
  const int64_t fair = divide_up(panels * best.row_blocks, kTasksPerThread * count_threads());
  best.panels = least(panels, divide_up(most(fair, fewest), group) * group);
  for (int64_t some = best.panels - group; some >= most(group, fewest); some -= group) {
    Blocking other = best;
    other.panels = some;
    if (count_idle(other, panels) < count_idle(best, panels)) best = other;
  }
  best.panel_blocks = divide_up(panels, best.panels);
  return best;
}

// Brings the activations into the form that the kernel wants; returns false if there is no memory for that.
bool prepare_input(const Weight& weight, const Rows& rows, Input& input) {
  const int64_t groups = divide_up(weight.in, kGroup), bytes = divide_up(kernels->input_bytes(weight), 64) * 64;
  input = Input{rows.x, rows.stride * 4, nullptr, nullptr};
  if (bytes == 0) return true;
  char* const room = scratch.take(rows.count * (bytes + groups * 8));
  if (!room) return false;
  input.x = room;
  input.stride = bytes;
  input.scales = reinterpret_cast<float*>(room + rows.count * bytes);
  input.sums = weight.kind == kInt4 ? input.scales + rows.count * groups : nullptr;
  share_rows(rows.count, weight.in, [&](int64_t row) { kernels->round_input(weight, rows.x + row * rows.stride, input, row); });
  return true;
}

}  // namespace

Status multiply_rows(const Weight& weight, const Rows& given, const Output& output) {
  if (given.count <= 0) return kOk;
  const int64_t panels = divide_up(weight.out, kPanel);
  const Blocking blocking = choose_blocking(weight, given.count, panels, 2);
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

// Some rows of two panels of the gate and of the two that they gate, one right after the other, while they are in the cache.
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
  alignas(64) float products[kTaskRows * kWidth];  // [rows][panel][gate, value][16]
  PanelOutput list[kPanelGroup];
  for (int64_t i = 0; i < 2 * count; ++i) {
    const int64_t of = panel + i / 2 + i % 2 * half;
    list[i] = {of, {products + i * kPanel - block.begin * kWidth - of * kPanel, kWidth, nullptr, 0}};
  }
  kernels->multiply(block.weight, block.input, PanelOutputs{list, 2 * count, panel + count}, block.begin, block.end);
  for (int64_t row = block.begin; row < block.end; ++row) {
    for (int64_t i = 0; i < count; ++i) {
      const float* const gates = products + (row - block.begin) * kWidth + 2 * i * kPanel;
      kernels->gate(block.gate, gates, gates + kPanel, kPanel, block.output.out + row * block.output.stride + (panel + i) * kPanel);
    }
  }
}

}  // namespace

Status multiply_gated(const Weight& weight, const Rows& given, const Output& output, int32_t gate) {
  if (given.count <= 0) return kOk;
  const int64_t panels = weight.out / 2 / kPanel;
  const Blocking blocking = choose_blocking(weight, given.count, panels, 2);
  Input input;
  if (!prepare_input(weight, given, input)) return kOutOfMemory;
  share(blocking.tasks(), [&](int64_t task) {
    const int64_t row = task / blocking.panel_blocks * blocking.rows, first = task % blocking.panel_blocks * blocking.panels;
    const GatedBlock block{weight, input, output, gate, row, least(given.count, row + blocking.rows)};
    const int64_t end = least(panels, first + blocking.panels);
    for (int64_t panel = first; panel < end; panel += 2) multiply_gated_panels(block, panel, least(2, end - panel));
  });
  return kOk;
}

}  // namespace plx
