#include "isa.h"
#include "simd.h"

#define PLX_TEXT(x) #x
#define PLX_NAME(x) PLX_TEXT(x)

namespace plx::PLX_ISA {
namespace {

template <int32_t Kind>
PLX_INLINE Floats shape_gate(Floats x) {
  if (Kind == kSilu) return x / (1.0f + exponential(-x));
  const Floats inner = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
  return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

template <int32_t Kind>
void gate_rows(const Gating& all) {
  for (int64_t row = 0; row < all.rows; ++row) {
    const float *gates = all.gates + row * all.gate_stride, *values = all.values + row * all.value_stride;
    float* const out = all.out + row * all.out_stride;
    int64_t i = 0;
    for (; i + kLanes <= all.count; i += kLanes) save(out + i, shape_gate<Kind>(load(gates + i)) * load(values + i));
    if (i == all.count) continue;
    float rest[kLanes] = {};
    memcpy(rest, gates + i, static_cast<size_t>(all.count - i) * kFloatBytes);
    const Floats shaped = shape_gate<Kind>(load(rest));
    for (int lane = 0; i < all.count; ++i, ++lane) out[i] = shaped[lane] * values[i];
  }
}

}  // namespace

void normalize(const float* x, float* residual, const float* weight, float offset, float eps, int64_t dim, float* out) {
  const float* source = x;
  if (residual) {
    for (int64_t i = 0; i < dim; ++i) residual[i] += x[i];
    source = residual;
  }
  constexpr int kLanesInAll = 32, kSums = kLanesInAll / kLanes;  // the order of additions is the same for all widths of vectors
  Floats squares[kSums] = {};
  for (int64_t i = 0; i < dim; i += kLanesInAll) {
    float rest[kLanesInAll] = {};  // numbers that fill no vectors, then zeros: compilers round single products in two ways
    const bool is_whole = i + kLanesInAll <= dim;
    if (!is_whole) memcpy(rest, source + i, static_cast<size_t>(dim - i) * kFloatBytes);
    const float* const some = is_whole ? source + i : rest;
    for (int part = 0; part < kSums; ++part) {
      const Floats value = load(some + kLanes * part);
      squares[part] += value * value;
    }
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int part = 0; part < half; ++part) squares[part] += squares[part + half];
  }
  const float scale = 1.0f / sqrtf(sum(squares[0]) / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = source[i] * scale * (weight[i] + offset);
}

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cos[i] - second * sin[i];
    x[half + i] = second * cos[i] + first * sin[i];
  }
}

void gate(int32_t kind, const Gating& all) { return kind == kSilu ? gate_rows<kSilu>(all) : gate_rows<kGelu>(all); }

void narrow(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow_one(x[i]);
}

uint16_t quantize(const float* x, int64_t count, int8_t* codes) {
  uint32_t most = 0;  // the bits of the largest magnitude, which are in the order of the magnitudes; infinity and NaN are above
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(read_word(x + i)) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  constexpr uint32_t kInfinite = 0x7f800000;
  constexpr float kLeast = 1e-30f;  // less than a difference that anything could tell from zero
  const uint16_t scale = narrow_one(read_float(&most) / 127.0f);
  const float step = widen(scale), inverse = most < kInfinite && step >= kLeast ? 1.0f / step : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float code = most < kInfinite ? rintf(x[i] * inverse) : 0.0f;
    codes[i] = static_cast<int8_t>(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
  }
  return most < kInfinite ? inverse > 0 ? scale : 0 : narrow_one(NAN);
}

int64_t find_largest(const float* x, int64_t count, float* most) {
  Floats reach[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
  Ints strange = {};  // lanes that had NaN
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int part = 0; part < 4; ++part) {
      const Floats value = load(x + i + kLanes * part);
      reach[part] = larger(value, reach[part]);
      strange |= value != value;
    }
  }
  *most = largest(larger(larger(reach[0], reach[1]), larger(reach[2], reach[3])));
  for (int lane = 0; lane < kLanes; ++lane) *most = strange[lane] ? NAN : *most;
  for (; i < count; ++i) *most = x[i] > *most || x[i] != x[i] ? x[i] : *most;
  for (i = 0; i + kLanes <= count && sum(to_floats(load(x + i) == *most)) == 0; i += kLanes) {
  }
  while (i + 1 < count && x[i] != *most) ++i;
  return i;
}

float read(const float* x, int64_t count) {
  constexpr int kParts = 8, kAhead = 512;  // sums in registers; numbers that are prefetched ahead
  Floats sums[kParts] = {};
  for (int64_t i = 0; i + kParts * kLanes <= count; i += kParts * kLanes) {
    for (int part = 0; part < kParts; ++part) {
      __builtin_prefetch(x + i + kAhead + kLanes * part);
      sums[part] += load(x + i + kLanes * part);
    }
  }
  return sum(((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])));
}

const Kernels table = {
    PLX_NAME(PLX_ISA), input_bytes, round_input, multiply, adapt, gather, attend_bytes, attend, merge,
    normalize,         rotate,      gate,        narrow,   quantize, find_largest, draw_any, weigh_all, collect_from, forbid, read,
};

}  // namespace plx::PLX_ISA
