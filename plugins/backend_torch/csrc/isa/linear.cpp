#include "coded.h"
#include "dense.h"
#include "isa.h"

namespace plx::PLX_ISA {
namespace {

constexpr int64_t kDepth = 2048;    // inputs of one pass: the weights of a tile then stay in the second-level cache
constexpr int64_t kAhead = 2048;    // bytes that dense weights are prefetched ahead, if all rows fit one tile
constexpr int64_t kCodedAhead = 4;  // blocks that coded weights are prefetched ahead, if all rows fit one tile

// A block of an output: some rows by some panels of a weight.
struct Block {
  const Weight& weight;
  const PanelOutput* outputs;
  int panels;
  int64_t next;        // the panel that is multiplied afterwards, to prefetch
  int64_t begin, end;  // rows

  const char* panel(int p) const { return static_cast<const char*>(weight.data) + outputs[p].panel * panel_bytes(weight); }
  int64_t skip() const { return (next - outputs[0].panel) * panel_bytes(weight); }
  int64_t tiles(int64_t rows) const { return divide_up(end - begin, rows); }
};

constexpr float kZeros[kPanel] = {};

// A tile of a block: some rows by one panel.
struct OutputTile {
  float* out;
  int64_t stride, width, rows;
  const float* residual;
  int64_t residual_stride;
  const float* bias;

  OutputTile(const Block& block, int p, int64_t row, int64_t count) : rows(count) {
    const Output& output = block.outputs[p].output;
    const int64_t first = block.outputs[p].panel * kPanel, left = block.weight.out - first;
    out = output.out + row * output.stride + first;
    stride = output.stride;
    width = least(left, kPanel);
    residual = output.residual ? output.residual + row * output.residual_stride + first : nullptr;
    residual_stride = output.residual_stride;
    bias = block.weight.bias ? block.weight.bias + first : nullptr;
  }

  // Returns the sums, in the output itself. They begin with bias and residual if fresh, else with the output so far.
  Sums begin(bool is_fresh) const {
    if (!is_fresh) return {out, stride, out, stride};
    if (!residual) return {out, stride, bias ? bias : kZeros, 0};
    if (!bias) return {out, stride, residual, residual_stride};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < kPanel; ++o) out[r * stride + o] = residual[r * residual_stride + o] + bias[o];
    }
    return {out, stride, out, stride};
  }

  // Returns the sums in a buffer [rows][kPanel], with the same initial values; `end` copies them to the output.
  Sums begin_aside(bool is_fresh, float* sums) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < width; ++o) {
        float& sum = sums[r * kPanel + o];
        sum = is_fresh ? 0.0f : out[r * stride + o];
        if (is_fresh && residual) sum = residual[r * residual_stride + o];
        if (is_fresh && bias) sum += bias[o];
      }
    }
    return {sums, kPanel, sums, kPanel};
  }

  void end(const Sums& sums) const {
    if (sums.to == out) return;
    for (int64_t r = 0; r < rows; ++r) memcpy(out + r * stride, sums.to + r * kPanel, static_cast<size_t>(width * kFloatBytes));
  }
};

// Calls body(row, rows) for tiles of nearly equal height, at most `highest`.
template <class Body>
PLX_INLINE void each_tile(const Block& block, int64_t highest, Body&& body) {
  int64_t row = block.begin;
  for (int64_t left = block.tiles(highest); left > 0; --left) {
    const int64_t rows = divide_up(block.end - row, left);
    body(row, rows);
    row += rows;
  }
}

// Calls add(row, rows, sums) for tiles of at most `Most` rows.
template <int Most, class Add>
PLX_INLINE void add_tiles(const Block& block, bool is_fresh, bool is_aside, Add&& add) {
  alignas(kCacheLine) float aside[kPanelGroup][Most * kPanel] = {};
  each_tile(block, Most, [&](int64_t row, int64_t rows) {
    Sums sums[kPanelGroup] = {};
    for (int p = 0; p < block.panels; ++p) {
      const OutputTile tile(block, p, row, rows);
      sums[p] = is_aside || tile.width < kPanel ? tile.begin_aside(is_fresh, aside[p]) : tile.begin(is_fresh);
    }
    add(row, static_cast<int>(rows), sums);
    for (int p = 0; p < block.panels; ++p) OutputTile(block, p, row, rows).end(sums[p]);
  });
}

// Weights are prefetched during the products, which keeps memory busy: with one tile, those kAhead bytes ahead in each panel;
// with several tiles, each tile prefetches a part of the next panels.
template <class Weights>
void multiply_floats(const Block& block, const Input& input) {
  const int64_t in = block.weight.in, tiles = block.tiles(kTileRows);
  for (int64_t first = 0; first < in; first += kDepth) {
    const int64_t count = least(in - first, kDepth);
    Tile tile{};
    tile.x_stride = input.stride;
    for (int p = 0; p < block.panels; ++p) tile.w[p] = block.panel(p) + first / Weights::kInputs * kStepBytes;
    tile.steps = divide_up(count, Weights::kInputs);
    tile.is_odd = Weights::kProducts > 1 && count % Weights::kInputs;
    const int64_t rest = block.skip() - first / Weights::kInputs * kStepBytes;
    const int64_t next = first + kDepth < in ? kStepBytes * tile.steps : rest;
    tile.ahead = tiles == 1 ? kAhead : next;
    tile.pace = kStepBytes / tiles;
    add_tiles<kTileRows>(block, first == 0, false, [&](int64_t row, int rows, const Sums* sums) {
      tile.x = static_cast<const char*>(input.x) + row * input.stride + first * Weights::kItem;
      for (int p = 0; p < block.panels; ++p) tile.sums[p] = sums[p];
      multiply_dense<Weights>(rows, block.panels, tile);
      tile.ahead += tile.steps * tile.pace;
    });
  }
}

template <class Weights>
void multiply_codes(const Block& block, const Input& input) {
  const int64_t groups = divide_up(block.weight.in, kGroup), tiles = block.tiles(Weights::kRows);
  CodedTile tile{};
  tile.x_stride = input.stride;
  tile.w = block.panel(0);
  tile.groups = groups;
  tile.ahead = tile.w + (tiles == 1 ? kCodedAhead * Weights::kBytes : block.skip());
  tile.pace = Weights::kBytes / tiles;
  add_tiles<Weights::kRows>(block, true, true, [&](int64_t row, int rows, const Sums* sums) {
    tile.x = static_cast<const char*>(input.x) + row * input.stride;
    tile.scales = input.scales + row * groups;
    tile.sums = Weights::kHasLow ? input.sums + row * groups : nullptr;
    tile.out = sums[0].to;
    multiply_coded<Weights>(rows, tile);
    tile.ahead += groups * tile.pace;
  });
}

// Whether a product multiplies bfloat16 by bfloat16.
bool multiplies_pairs(const Weight& weight) {
#if defined(PLX_PAIRS)
  return weight.kind == kBfloat16 && weight.narrow;
#else
  (void)weight;
  return false;
#endif
}

void multiply_block(const Block& block, const Input& input) {
  switch (block.weight.kind) {
    case kFloat32: return multiply_floats<Float32Weights>(block, input);
    case kInt8: return multiply_codes<Int8Weights>(block, input);
    case kInt8Low: return multiply_codes<Int8LowWeights>(block, input);
    case kInt4: return multiply_codes<Int4Weights>(block, input);
    default: break;
  }
#if defined(PLX_PAIRS)
  if (multiplies_pairs(block.weight)) return multiply_floats<Bfloat16Pairs>(block, input);
#endif
  multiply_floats<Bfloat16Weights>(block, input);
}

}  // namespace

void multiply_float_tile(int rows, int panels, const Tile& tile) { multiply_dense<Float32Weights>(rows, panels, tile); }
#if defined(PLX_PAIRS)
void multiply_pair_tile(int rows, int panels, const Tile& tile) { multiply_dense<Bfloat16Pairs>(rows, panels, tile); }
#endif

void multiply(const Weight& weight, const Input& input, const PanelOutputs& outputs, int64_t begin, int64_t end) {
  const bool is_dense = weight.kind == kFloat32 || weight.kind == kBfloat16;
  const int64_t panels = is_dense ? count_panels(least(end - begin, kTileRows)) : 1;
  for (int64_t done = 0, some = 0; done < outputs.count; done += some) {
    const int64_t left = outputs.count - done;
    some = left < panels ? round_down(left) : panels;
    const int64_t next = some < left ? outputs.list[done + some].panel : outputs.next + outputs.list[done].panel - outputs.list[0].panel;
    multiply_block(Block{weight, outputs.list + done, static_cast<int>(some), next, begin, end}, input);
  }
}

int64_t input_bytes(const Weight& weight) {
  const int64_t coded = divide_up(weight.in, kGroup) * kGroup;
  if (weight.kind == kInt8 || weight.kind == kInt8Low) return coded * Int8Weights::kCodeBytes;
  if (weight.kind == kInt4) return coded * Int4Weights::kCodeBytes;
  return multiplies_pairs(weight) ? divide_up(weight.in, 2) * 2 * kHalfBytes : 0;
}

void round_input(const Weight& weight, const float* x, const Input& input, int64_t row) {
  if (weight.kind == kInt8 || weight.kind == kInt8Low) return round_row<Int8Weights>(x, input, row, weight.in);
  if (weight.kind == kInt4) return round_row<Int4Weights>(x, input, row, weight.in);
  uint16_t* const out = reinterpret_cast<uint16_t*>(static_cast<char*>(const_cast<void*>(input.x)) + row * input.stride);
  narrow(x, weight.in, out);
  if (weight.in % 2) out[weight.in] = 0;
}

namespace {

// Returns one weight of a block, in float32.
float read_code(const char* block, int32_t kind, int64_t output, int64_t input) {
  uint16_t scale, low = 0;
  memcpy(&scale, block + kHalfBytes * output, kHalfBytes);
  if (kind != kInt8) memcpy(&low, block + kScaleBytes + kHalfBytes * output, kHalfBytes);
  if (kind != kInt4) {
    const char* const codes = block + kInt8Codes + (kind == kInt8Low ? kScaleBytes : 0);
    const int8_t code = static_cast<int8_t>(codes[kPairBytes * (input / 2) + 2 * output + input % 2]);
    return half_one(scale) * static_cast<float>(code) + half_one(low);
  }
  const int64_t line = kLines * (output / kLineOutputs) + input / kLineInputs;
  const int64_t place = kLineBytes * line + kQuad * (output % kLineOutputs) + input % kQuad;
  const uint8_t both = static_cast<uint8_t>(block[kInt4Codes + place]);
  const int code = input % kLineInputs < kQuad ? both & 15 : both >> 4;
  return half_one(scale) * static_cast<float>(code) + half_one(low);
}

}  // namespace

void gather(const Weight& weight, int64_t id, float* out) {
  const char* const panel = static_cast<const char*>(weight.data) + id / kPanel * panel_bytes(weight);
  const int64_t o = id % kPanel, block = panel_bytes(weight) / divide_up(weight.in, kGroup);
  for (int64_t i = 0; i < weight.in; ++i) {
    if (weight.kind == kFloat32) {
      memcpy(out + i, panel + i * kStepBytes + o * kFloatBytes, kFloatBytes);
    } else if (weight.kind == kBfloat16) {
      uint16_t bits;
      memcpy(&bits, panel + i / 2 * kStepBytes + (2 * o + i % 2) * kHalfBytes, kHalfBytes);
      out[i] = widen(bits);
    } else {
      out[i] = read_code(panel + i / kGroup * block, weight.kind, o, i % kGroup);
    }
  }
}

}  // namespace plx::PLX_ISA
