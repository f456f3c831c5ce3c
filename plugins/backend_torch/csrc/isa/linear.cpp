#include "coded.h"
#include "dense.h"
#include "isa.h"

namespace plx::PLX_ISA {
namespace {

// Inputs whose weights are multiplied in one go by all rows: 16 outputs of so many fill half of a second-level cache.
constexpr int64_t kDepth = 4096;

// For this many rows it pays to widen the weights of a panel first, so many inputs of it at a time.
constexpr int64_t kWidenRows = 24;
constexpr int64_t kWidenDepth = 768;

struct Tile {
  int64_t row, rows, first, width;  // outputs first .. first + width - 1
};

void begin_narrow_tile(const Weight& weight, const Output& output, const Tile& at, bool fresh, float* tile) {
  for (int64_t r = 0; r < at.rows; ++r) {
    for (int64_t o = 0; o < at.width; ++o) {
      float value = fresh ? 0.0f : output.out[(at.row + r) * output.stride + at.first + o];
      if (fresh && weight.bias) value += weight.bias[at.first + o];
      if (fresh && output.residual) value += output.residual[(at.row + r) * output.residual_stride + at.first + o];
      tile[r * kPanel + o] = value;
    }
  }
}

// Puts into a tile what its products are added to: bias and residual, or what earlier inputs gave.
void begin_tile(const Weight& weight, const Output& output, const Tile& at, bool fresh, float* tile) {
  if (at.width < kPanel) return begin_narrow_tile(weight, output, at, fresh, tile);
  for (int64_t half = 0; half < kPanel; half += 8) {
    const F8 bias = fresh && weight.bias ? load(weight.bias + at.first + half) : splat(0.0f);
    const float* const base = fresh ? output.residual : output.out;
    const int64_t stride = fresh ? output.residual_stride : output.stride;
    for (int64_t r = 0; r < at.rows; ++r) {
      save(tile + r * kPanel + half, base ? bias + load(base + (at.row + r) * stride + at.first + half) : bias);
    }
  }
}

void end_tile(const Output& output, const Tile& at, const float* tile) {
  for (int64_t r = 0; r < at.rows; ++r) {
    float* const out = output.out + (at.row + r) * output.stride + at.first;
    if (at.width < kPanel) {
      memcpy(out, tile + r * kPanel, static_cast<size_t>(at.width) * 4);
    } else {
      save(out, load(tile + r * kPanel));
      save(out + 8, load(tile + r * kPanel + 8));
    }
  }
}

// Calls add(tile of rows, numbers) for the rows in tiles of nearly equal height.
template <class Add>
PLX_INLINE void add_tiles(const Weight& weight, const Output& output, Tile at, bool fresh, int64_t most, Add&& add) {
  alignas(32) float tile[kDenseRows * kPanel] = {};
  const int64_t end = at.row + at.rows;
  for (int64_t left = (at.rows + most - 1) / most; left > 0; --left) {
    at.rows = (end - at.row + left - 1) / left;
    begin_tile(weight, output, at, fresh, tile);
    add(at, tile);
    end_tile(output, at, tile);
    at.row += at.rows;
  }
}

void widen_panel(const char* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += 2, from += 64, to += 2 * kPanel) {
    for (int half = 0; half < 2; ++half) {
      save(to + 8 * half, Bfloat16Panel::read(from, 0, half));
      save(to + kPanel + 8 * half, Bfloat16Panel::read(from, 1, half));
    }
  }
}

void multiply_widened(const Weight& weight, const Input& input, const Output& output, const char* panel, const Tile& at) {
  alignas(32) float wide[kWidenDepth * kPanel];
  const int64_t parts = (weight.in + kWidenDepth - 1) / kWidenDepth;
  const int64_t step = (weight.in + 2 * parts - 1) / (2 * parts) * 2;
  for (int64_t first = 0; first < weight.in; first += step) {
    const int64_t count = weight.in - first < step ? weight.in - first : step;
    widen_panel(panel + first * 32, count, wide);
    add_tiles(weight, output, at, first == 0, kDenseRows, [&](const Tile& part, float* tile) {
      const float* const x = input.x + part.row * input.stride + first;
      multiply_dense<Float32Panel>(static_cast<int>(part.rows), x, input.stride, reinterpret_cast<const char*>(wide), count, tile);
    });
  }
}

template <class Panel>
void multiply_floats(const Weight& weight, const Input& input, const Output& output, const char* panel, const Tile& at) {
  for (int64_t first = 0; first < weight.in; first += kDepth) {
    const int64_t count = weight.in - first < kDepth ? weight.in - first : kDepth;
    add_tiles(weight, output, at, first == 0, Panel::kRows, [&](const Tile& part, float* tile) {
      const float* const x = input.x + part.row * input.stride + first;
      const char* const w = panel + first / Panel::kStep * Panel::kBytes;
      multiply_dense<Panel>(static_cast<int>(part.rows), x, input.stride, w, count, tile);
    });
  }
}

template <class Panel>
void multiply_codes(const Weight& weight, const Input& input, const Output& output, const char* panel, const Tile& at) {
  const int64_t groups = (weight.in + kGroup - 1) / kGroup;
  add_tiles(weight, output, at, true, kCodedRows, [&](const Tile& part, float* tile) {
    multiply_coded<Panel>(static_cast<int>(part.rows), input, part.row, groups, panel, tile);
  });
}

}  // namespace

void multiply(const Weight& weight, const Input& input, const Output& output, int64_t panel, int64_t begin, int64_t end) {
  const char* const data = static_cast<const char*>(weight.data) + panel * panel_bytes(weight);
  const int64_t left = weight.out - panel * kPanel;
  const Tile at{begin, end - begin, panel * kPanel, left < kPanel ? left : kPanel};
  if (weight.kind == kInt8) return multiply_codes<Int8Panel>(weight, input, output, data, at);
  if (weight.kind == kInt4) return multiply_codes<Int4Panel>(weight, input, output, data, at);
  if (weight.kind == kFloat32) return multiply_floats<Float32Panel>(weight, input, output, data, at);
  if (at.rows >= kWidenRows) return multiply_widened(weight, input, output, data, at);
  multiply_floats<Bfloat16Panel>(weight, input, output, data, at);
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
