#include <cfloat>

#include "../gumbel.h"
#include "isa.h"
#include "simd.h"

namespace plx::PLX_ISA {
namespace {

constexpr float kLog2 = 0.693147180559945f;
constexpr float kMargin = 1e-3f;  // more than a bound and a threshold are rounded by

// Calls body(i) for each lane of `is_true` that is true, in order.
template <class Body>
PLX_INLINE void each_true(Ints is_true, Body&& body) {
  for (uint32_t left = true_lanes(is_true); left; left &= left - 1) body(__builtin_ctz(left));
}

// Differences of logits are computed in halves, since those of the largest numbers are infinite; so this is twice the inverse.
PLX_INLINE float invert(double temperature) { return static_cast<float>(fmin(2 / temperature, FLT_MAX)); }

}  // namespace

// A token can win only if a bound of its noise lets it. With v = (bits + 0.5) / 2^32, the noise -log(-log(1 - v)) is at most
// -log(v), and log2(v) is at least what the exponent and the mantissa of v say, read as one number: within 0.09.
int64_t draw_any(const Draw& draw, const float* x, int64_t count, int64_t likeliest, float border) {
  Best best{x, draw.temperature, draw.key};
  best.consider(likeliest);
  const Floats largest = splat(x[likeliest] * 0.5f), inverse = splat(invert(draw.temperature));
  const double shift = static_cast<double>(x[likeliest]) / draw.temperature;
  const Floats most = splat((32 + 127) * kLog2), unit = splat(kLog2 * 0x1p-23f);
  Words token;
  for (int lane = 0; lane < kLanes; ++lane) token[lane] = kGolden + static_cast<uint32_t>(lane);
  float threshold = static_cast<float>(best.score - shift) - kMargin;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes, token += kLanes) {
    const Floats v = __builtin_convertvector(mix32(mix32(token) ^ draw.key), Floats) + 0.5f;
    const Floats logit = load(x + i);
    const Floats bound = (logit * 0.5f - largest) * inverse + (most - to_floats(reinterpret_cast<Ints>(v)) * unit);
    const Ints may_win = (bound > threshold) & (logit >= border);
    if (true_lanes(may_win)) {
      each_true(may_win, [&](int lane) { best.consider(i + lane); });
      threshold = static_cast<float>(best.score - shift) - kMargin;
    }
  }
  for (; i < count; ++i) {
    if (x[i] >= border) best.consider(i);
  }
  return best.token;
}

// Adds exp((x[i] - most) / temperature), in one order for all widths of vectors.
double weigh_all(const float* x, int64_t count, float most, double temperature) {
  constexpr int kLanesInAll = 16, kParts = kLanesInAll / kLanes;
  typedef double Doubles __attribute__((vector_size(8 * kLanes)));
  const Floats largest = splat(most * 0.5f), inverse = splat(invert(temperature));
  Doubles sums[kParts] = {};
  int64_t i = 0;
  for (; i + kLanesInAll <= count; i += kLanesInAll) {
    for (int part = 0; part < kParts; ++part) {
      sums[part] += __builtin_convertvector(exponential((load(x + i + kLanes * part) * 0.5f - largest) * inverse), Doubles);
    }
  }
  double total = 0;
  for (int lane = 0; lane < kLanesInAll; ++lane) total += sums[lane / kLanes][lane % kLanes];
  for (; i < count; ++i) total += exp((static_cast<double>(x[i]) - static_cast<double>(most)) / temperature);
  return total;
}

int64_t collect_from(const float* x, int64_t count, float border, int32_t* places) {
  int64_t found = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    each_true(load(x + i) >= border, [&](int lane) { places[found++] = static_cast<int32_t>(i + lane); });
  }
  for (; i < count; ++i) {
    if (x[i] >= border) places[found++] = static_cast<int32_t>(i);
  }
  return found;
}

void forbid(const uint8_t* allowed, int64_t count, float* x) {
  constexpr int kBits = kLanes < 8 ? 8 : kLanes;  // whole bytes
  Words bit_of_lane;
  for (int lane = 0; lane < kLanes; ++lane) bit_of_lane[lane] = 1u << lane;
  int64_t i = 0;
  for (; i + kBits <= count; i += kBits) {
    uint32_t bits = 0;
    memcpy(&bits, allowed + i / 8, kBits / 8);
    for (int begin = 0; begin < kBits; begin += kLanes, bits >>= kLanes) {
      float* const part = x + i + begin;
      save(part, (bit_of_lane & bits) == 0 ? splat(-INFINITY) : load(part));
    }
  }
  for (; i < count; ++i) {
    if (!(allowed[i / 8] >> i % 8 & 1)) x[i] = -INFINITY;
  }
}

}  // namespace plx::PLX_ISA
