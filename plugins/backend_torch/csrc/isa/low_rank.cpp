// Products with the matrices of LoRA adapters: thin ones, which fill no panels. Each sum adds its products in the same order for
// every size of tile, so a row gives the same bits beside any other rows.
#include "isa.h"
#include "simd.h"

namespace plx::PLX_ISA {
namespace {

#if defined(__AVX512F__) || defined(PLX_NEON)
constexpr int kMostRows = 4;  // rows of a tile, limited by the registers for sums
#else
constexpr int kMostRows = 2;
#endif

// Prefetches the second matrix of a part while the first is read.
struct Ahead {
  const char* at;
  const char* end;

  PLX_INLINE void fetch(Ahead& ahead) {
    for (int line = 0; line < 4 && ahead.at < ahead.end; ++line, ahead.at += kCacheLine) __builtin_prefetch(ahead.at, 0, 2);
  }
};

struct Float32 {
  static constexpr int64_t kItem = kFloatBytes;
  PLX_INLINE Floats read(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  PLX_INLINE float read_one(const char* p) { return read_float(p); }
};

struct Bfloat16 {
  static constexpr int64_t kItem = kHalfBytes;
  PLX_INLINE Floats read(const char* p) { return as_floats(widen_bfloat16(p)); }
  PLX_INLINE float read_one(const char* p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return widen(bits);
  }
};

// The products of the last numbers of a row, which fill no vector.
template <class Number>
__attribute__((noinline)) float add_rest(const float* x, const char* a, int64_t count) {
  float total = 0.0f;
  for (int64_t i = 0; i < count; ++i) total += x[i] * Number::read_one(a + i * Number::kItem);
  return total;
}

// Writes the products of R rows by J rows of `a`, scaled.
template <class Number, int R, int J>
void shrink_tile(const LowRank& part, const float* const* x, const char* a, float* small, Ahead& ahead) {
  const int64_t stride = part.in * Number::kItem;
  Floats sums[R][J] = {};
  int64_t i = 0;
  for (; i + kLanes <= part.in; i += kLanes) {
    Ahead::fetch(ahead);
    Floats numbers[R];
    PLX_UNROLL for (int r = 0; r < R; ++r) numbers[r] = load(x[r] + i);
    PLX_UNROLL for (int j = 0; j < J; ++j) {
      const Floats weight = Number::read(a + j * stride + i * Number::kItem);
      PLX_UNROLL for (int r = 0; r < R; ++r) add_product(sums[r][j], numbers[r], weight);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < J; ++j) {
      float total = sum(sums[r][j]);
      if (i < part.in) total += add_rest<Number>(x[r] + i, a + j * stride + i * Number::kItem, part.in - i);
      small[r * part.rank + j] = total * part.scale;
    }
  }
}

template <class Number, int R>
void shrink(const LowRank& part, const float* const* x, float* small, Ahead& ahead) {
  constexpr int kMost = R == 1 ? 8 : 4;
  const char* const a = static_cast<const char*>(part.a);
  const int64_t stride = part.in * Number::kItem;
  int64_t j = 0;
  for (; j + kMost <= part.rank; j += kMost) shrink_tile<Number, R, kMost>(part, x, a + j * stride, small + j, ahead);
  for (; j < part.rank; ++j) shrink_tile<Number, R, 1>(part, x, a + j * stride, small + j, ahead);
}

// Adds the products of R rows by P panels of `b` to their outputs.
template <class Number, int R, int P>
void expand_panels(const LowRank& part, const float* small, const char* b, float* const* out) {
  constexpr int kAll = P * kVectors;
  const int64_t panel = part.rank * kPanel * Number::kItem;
  Floats sums[R][kAll];
  PLX_UNROLL for (int r = 0; r < R; ++r) {
    PLX_UNROLL for (int v = 0; v < kAll; ++v) sums[r][v] = load(out[r] + v * kLanes);
  }
  for (int64_t j = 0; j < part.rank; ++j, b += kPanel * Number::kItem) {
    PLX_UNROLL for (int v = 0; v < kAll; ++v) {
      const Floats weight = Number::read(b + v / kVectors * panel + v % kVectors * kLanes * Number::kItem);
      PLX_UNROLL for (int r = 0; r < R; ++r) add_product(sums[r][v], splat(small[r * part.rank + j]), weight);
    }
  }
  PLX_UNROLL for (int r = 0; r < R; ++r) {
    PLX_UNROLL for (int v = 0; v < kAll; ++v) save(out[r] + v * kLanes, sums[r][v]);
  }
}

template <class Number, int R>
void expand(const LowRank& part, const float* small, float* const* out) {
  constexpr int kPanels = kVectors == 1 ? 4 : kVectors == 2 ? 2 : 1;
  const int64_t panel = part.rank * kPanel * Number::kItem;
  const char* b = static_cast<const char*>(part.b);
  float* to[R];
  int64_t column = 0;
  const auto place = [&] { PLX_UNROLL for (int r = 0; r < R; ++r) to[r] = out[r] + column; };
  for (; column + kPanels * kPanel <= part.out; column += kPanels * kPanel, b += kPanels * panel) {
    place();
    expand_panels<Number, R, kPanels>(part, small, b, to);
  }
  for (; column + kPanel <= part.out; column += kPanel, b += panel) {
    place();
    expand_panels<Number, R, 1>(part, small, b, to);
  }
  if (column == part.out) return;
  float aside[R][kPanel] = {};
  const auto bytes = static_cast<size_t>((part.out - column) * kFloatBytes);
  for (int r = 0; r < R; ++r) memcpy(to[r] = aside[r], out[r] + column, bytes);
  expand_panels<Number, R, 1>(part, small, b, to);
  for (int r = 0; r < R; ++r) memcpy(out[r] + column, aside[r], bytes);
}

template <class Number, int R>
void adapt_tile(const LowRank& part, const int32_t* places, const Rows& rows, const Output& output, float* small, Ahead& ahead) {
  const float* x[R];
  float* out[R];
  for (int r = 0; r < R; ++r) {
    x[r] = rows.x + places[r] * rows.stride;
    out[r] = output.out + places[r] * output.stride + part.column;
  }
  shrink<Number, R>(part, x, small, ahead);
  expand<Number, R>(part, small, out);
}

template <class Number>
void adapt_rows(const LowRank& part, const int32_t* places, const Rows& rows, const Output& output, float* small) {
  const char* const b = static_cast<const char*>(part.b);
  Ahead ahead{b, b + divide_up(part.out, kPanel) * kPanel * part.rank * Number::kItem};
  int64_t done = 0;
  for (; done + kMostRows <= rows.count; done += kMostRows) {
    adapt_tile<Number, kMostRows>(part, places + done, rows, output, small, ahead);
  }
  switch (rows.count - done) {
    case 1: return adapt_tile<Number, 1>(part, places + done, rows, output, small, ahead);
#if defined(__AVX512F__) || defined(PLX_NEON)
    case 2: return adapt_tile<Number, 2>(part, places + done, rows, output, small, ahead);
    case 3: return adapt_tile<Number, 3>(part, places + done, rows, output, small, ahead);
#endif
    default: return;
  }
}

}  // namespace

void adapt(const LowRank& part, const int32_t* places, const Rows& rows, const Output& output, float* small) {
  if (part.kind == kFloat32) return adapt_rows<Float32>(part, places, rows, output, small);
  adapt_rows<Bfloat16>(part, places, rows, output, small);
}

}  // namespace plx::PLX_ISA
