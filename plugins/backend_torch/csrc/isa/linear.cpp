#include "coded.h"
#include "dense.h"
#include "isa.h"

namespace plx::PLX_ISA {
namespace {

// Inputs whose weights are multiplied in one go by all rows: 16 outputs of so many fill half of a second-level cache.
constexpr int64_t kDepth = 4096;

struct Tile {
  int64_t row, rows, first, width;  // outputs first .. first + width - 1
};

void begin_tile(const Weight& weight, const Output& output, const Tile& at, bool fresh, float* tile) {
  for (int64_t r = 0; r < at.rows; ++r) {
    const float* const out = output.out + (at.row + r) * output.stride + at.first;
    const float* const residual =
        output.residual ? output.residual + (at.row + r) * output.residual_stride + at.first : nullptr;
    for (int64_t o = 0; o < at.width; ++o) {
      float value = fresh ? 0.0f : out[o];
      if (fresh && weight.bias) value += weight.bias[at.first + o];
      if (fresh && residual) value += residual[o];
      tile[r * kPanel + o] = value;
    }
  }
}

void end_tile(const Output& output, const Tile& at, const float* tile) {
  for (int64_t r = 0; r < at.rows; ++r) {
    memcpy(output.out + (at.row + r) * output.stride + at.first, tile + r * kPanel, static_cast<size_t>(at.width) * 4);
  }
}

struct Depth {
  int64_t begin, count;  // inputs
};

void multiply_tile(const Weight& weight, const Input& input, const Tile& at, const Depth& depth, const char* panel, float* tile) {
  const int rows = static_cast<int>(at.rows);
  const float* const x = input.x + at.row * input.stride + depth.begin;
  switch (weight.kind) {
    case kFloat32:
      return multiply_dense<Float32Panel>(rows, x, input.stride, panel + depth.begin * 64, depth.count, tile);
    case kBfloat16:
      return multiply_dense<Bfloat16Panel>(rows, x, input.stride, panel + depth.begin * 32, depth.count, tile);
    case kInt8: return multiply_coded<Int8Panel>(rows, input, at.row, (weight.in + kGroup - 1) / kGroup, panel, tile);
    default: return multiply_coded<Int4Panel>(rows, input, at.row, (weight.in + kGroup - 1) / kGroup, panel, tile);
  }
}

}  // namespace

void multiply(const Weight& weight, const Input& input, const Output& output, int64_t panel, int64_t begin, int64_t end) {
  const bool coded = weight.kind == kInt8 || weight.kind == kInt4;
  const int64_t most = coded ? kCodedRows : kDenseRows;
  const int64_t tiles = (end - begin + most - 1) / most;
  const int64_t depth = coded ? weight.in : kDepth;
  const char* const data = static_cast<const char*>(weight.data) + panel * panel_bytes(weight);
  const int64_t left = weight.out - panel * kPanel;
  alignas(32) float tile[kDenseRows * kPanel] = {};
  for (int64_t first = 0; first == 0 || first < weight.in; first += depth) {
    const Depth part{first, weight.in - first < depth ? weight.in - first : depth};
    int64_t row = begin;
    for (int64_t i = 0; i < tiles; ++i) {  // of nearly equal height
      const Tile at{row, (end - row + tiles - i - 1) / (tiles - i), panel * kPanel, left < kPanel ? left : kPanel};
      begin_tile(weight, output, at, first == 0, tile);
      multiply_tile(weight, input, at, part, data, tile);
      end_tile(output, at, tile);
      row += at.rows;
    }
  }
}

void round_input(const Input& input, int32_t kind, int64_t row, int64_t in) {
  return kind == kInt8 ? round_row<int16_t>(input, 32767, row, in) : round_row<int8_t>(input, 127, row, in);
}

namespace {

float read_code(const char* block, int32_t kind, int64_t output, int64_t input) {
  uint16_t scale, low;
  memcpy(&scale, block + 2 * output, 2);
  if (kind == kInt8) {
    const int8_t code = static_cast<int8_t>(block[32 + 32 * (input / 2) + 2 * output + input % 2]);
    return half_one(scale) * static_cast<float>(code);
  }
  memcpy(&low, block + 32 + 2 * output, 2);
  const int64_t line = 4 * (output / 8) + input / 8;
  const uint8_t both = static_cast<uint8_t>(block[64 + 32 * line + 4 * (output % 8) + input % 4]);
  const int code = input % 8 < 4 ? both & 15 : both >> 4;
  return half_one(scale) * static_cast<float>(code) + half_one(low);
}

}  // namespace

void gather(const Weight& weight, int64_t id, float* out) {
  const char* const panel = static_cast<const char*>(weight.data) + id / kPanel * panel_bytes(weight);
  const int64_t o = id % kPanel;
  for (int64_t i = 0; i < weight.in; ++i) {
    if (weight.kind == kFloat32) {
      memcpy(out + i, panel + i * 64 + o * 4, 4);
    } else if (weight.kind == kBfloat16) {
      uint16_t bits;
      memcpy(&bits, panel + i / 2 * 64 + o * 4 + i % 2 * 2, 2);
      out[i] = widen(bits);
    } else {
      const int64_t size = weight.kind == kInt8 ? kInt8Block : kInt4Block;
      out[i] = read_code(panel + i / kGroup * size, weight.kind, o, i % kGroup);
    }
  }
}

}  // namespace plx::PLX_ISA
