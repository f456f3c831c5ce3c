#include "coded.h"
#include "dense.h"
#include "isa.h"

namespace plx::PLX_ISA {
namespace {

// Inputs whose weights are multiplied in one go by all rows: 16 outputs of so many fill half of a second-level cache.
constexpr int64_t kDepth = 2048;
constexpr int64_t kBlock = 320;  // the same of many rows, whose sums wait in the output meanwhile

// Some rows of one panel, or of two at once.
struct Area {
  const Weight& weight;
  const Strip* strips;
  int panels;
  int64_t begin, end;  // rows

  const char* panel(int p) const { return static_cast<const char*>(weight.data) + strips[p].panel * panel_bytes(weight); }
};

// The part of an output that some rows of a panel make, from row 0 on.
struct Place {
  float* out;
  int64_t stride, width;
  const float* residual;
  int64_t residual_stride;
  const float* bias;

  Place(const Area& area, int p, int64_t row) {
    const Output& output = area.strips[p].output;
    const int64_t first = area.strips[p].panel * kPanel, left = area.weight.out - first;
    out = output.out + row * output.stride + first;
    stride = output.stride;
    width = left < kPanel ? left : kPanel;
    residual = output.residual ? output.residual + row * output.residual_stride + first : nullptr;
    residual_stride = output.residual_stride;
    bias = area.weight.bias ? area.weight.bias + first : nullptr;
  }

  // Puts there what products are added to: bias and residual.
  void begin(int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      if (width == kPanel) {
        begin_whole(r);
        continue;
      }
      float sums[kPanel] = {};
      for (int64_t o = 0; o < width && residual; ++o) sums[o] = residual[r * residual_stride + o];
      for (int64_t o = 0; o < width && bias; ++o) sums[o] += bias[o];
      memcpy(out + r * stride, sums, static_cast<size_t>(width) * 4);
    }
  }

  void begin_whole(int64_t r) const {
    for (int64_t o = 0; o < kPanel; o += 8) {
      F8 sums = residual ? load(residual + r * residual_stride + o) : splat(0.0f);
      if (bias) sums += load(bias + o);
      save(out + r * stride + o, sums);
    }
  }

  void copy_to(float* numbers, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) memcpy(numbers + r * kPanel, out + r * stride, static_cast<size_t>(width) * 4);
  }

  void copy_from(const float* numbers, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) memcpy(out + r * stride, numbers + r * kPanel, static_cast<size_t>(width) * 4);
  }
};

// Calls add(row, rows, sums) for tiles of at most `most` rows. The sums lie in the output itself, or beside
// it, 16 to a row, where they are wanted so or the panel is wider than the output.
template <class Add>
PLX_INLINE void add_tiles(const Area& area, bool fresh, bool beside, int64_t most, Add&& add) {
  alignas(32) float aside[2][kTileRows * kPanel] = {};
  each_tile(area.begin, area.end, most, [&](int64_t row, int64_t rows) {
    Sums sums[2] = {};
    for (int p = 0; p < area.panels; ++p) {
      const Place place(area, p, row);
      if (fresh) place.begin(rows);
      const bool whole = !beside && place.width == kPanel;
      if (!whole) place.copy_to(aside[p], rows);
      sums[p] = whole ? Sums{place.out, place.stride} : Sums{aside[p], kPanel};
    }
    add(row, static_cast<int>(rows), sums);
    for (int p = 0; p < area.panels; ++p) {
      if (sums[p].at == aside[p]) Place(area, p, row).copy_from(aside[p], rows);
    }
  });
}

// While rows go by, the weights that come next are fetched: else memory would rest while all but the first rows go by, and
// the first would wait for it. Many tiles share that out; of few, the last ones fetch all, unless weights are many to them.
template <class Panel>
void multiply_floats(const Area& area, const Input& input) {
  const int64_t in = area.weight.in, tiles = (area.end - area.begin + kTileRows - 1) / kTileRows;
  const bool spread = tiles * Panel::kStep < 4;
  for (int64_t first = 0; first < in; first += kDepth) {
    Pass pass{};
    pass.stride = input.stride;
    pass.count = in - first < kDepth ? in - first : kDepth;
    for (int p = 0; p < area.panels; ++p) pass.w[p] = area.panel(p) + first / Panel::kStep * Panel::kBytes;
    pass.ahead = pass.w[0] + (pass.count + Panel::kStep - 1) / Panel::kStep * Panel::kBytes;
    add_tiles(area, first == 0, false, kTileRows, [&](int64_t row, int rows, const Sums* sums) {
      pass.pace = spread ? 64 / tiles : row + rows == area.end ? 64 : 0;
      pass.x = input.x + row * input.stride + first;
      pass.sums[0] = sums[0], pass.sums[1] = sums[1];
      multiply_dense<Panel>(rows, area.panels, pass);
    });
  }
}

// Many rows, packed: some inputs of the panel stay in a first-level cache while all rows go by.
void multiply_many(const Area& area, const Input& input) {
  const int64_t in = area.weight.in, tiles = (area.end - area.begin + kTileRows - 1) / kTileRows;
  const int64_t blocks = (in + kBlock - 1) / kBlock, size = (in + blocks - 1) / blocks;
  for (int64_t first = 0; first < in; first += size) {
    Pass pass{};
    pass.count = in - first < size ? in - first : size;
    pass.w[0] = area.panel(0) + first * Float32Panel::kBytes;
    pass.ahead = pass.w[0] + pass.count * Float32Panel::kBytes;
    pass.pace = kUnrolled * Float32Panel::kBytes / tiles;
    add_tiles(area, first == 0, false, kTileRows, [&](int64_t row, int rows, const Sums* sums) {
      pass.sums[0] = sums[0];
      pass.x = input.packed + row * in + first * rows;
      multiply_packed_rows(rows, pass);
      pass.ahead += pass.count / kUnrolled * pass.pace;
    });
  }
}

template <class Panel>
void multiply_codes(const Area& area, const Input& input) {
  const int64_t groups = (area.weight.in + kGroup - 1) / kGroup;
  add_tiles(area, true, true, kCodedRows, [&](int64_t row, int rows, const Sums* sums) {
    multiply_coded<Panel>(rows, input, row, groups, area.panel(0), sums[0].at);
  });
}

void multiply_area(const Area& area, const Input& input) {
  switch (area.weight.kind) {
    case kFloat32: return input.packed ? multiply_many(area, input) : multiply_floats<Float32Panel>(area, input);
    case kBfloat16: return multiply_floats<Bfloat16Panel>(area, input);
    case kInt8: return multiply_codes<Int8Panel>(area, input);
    default: return multiply_codes<Int4Panel>(area, input);
  }
}

}  // namespace

void multiply(const Weight& weight, const Input& input, const Strip* strips, int64_t count, int64_t begin, int64_t end) {
  const bool dense = weight.kind == kFloat32 || weight.kind == kBfloat16;
  const int panels = dense && end - begin <= kPairedRows ? 2 : 1;
  for (int64_t done = 0; done < count; done += panels) {
    multiply_area(Area{weight, strips + done, done + panels <= count ? panels : 1, begin, end}, input);
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
