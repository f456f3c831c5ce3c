// The noise of a draw, exactly that of `parallax_core.api.gumbel` and `hash32`, and the search for the best score.
#pragma once

#include <cmath>
#include <cstdint>

namespace plx {

constexpr uint32_t kGolden = 0x9e3779b9u, kFirstFactor = 0x7feb352du, kSecondFactor = 0x846ca68bu;

// The "lowbias32" finaliser, on a number or on each lane of a vector.
template <class Bits>
static inline __attribute__((always_inline)) Bits mix32(Bits bits) {
  bits = (bits ^ (bits >> 16)) * kFirstFactor;
  bits = (bits ^ (bits >> 15)) * kSecondFactor;
  return bits ^ (bits >> 16);
}

static inline double gumbel(uint32_t bits) {
  const float v = static_cast<float>(static_cast<double>(bits) + 0.5) * 0x1p-32f;
  return v >= 1.0f ? -HUGE_VAL : -log(-log1p(-static_cast<double>(v)));
}

// The best score among the tokens considered so far: logit / temperature + noise, in double precision as in the reference.
struct Best {
  const float* logits;
  double temperature;
  uint32_t key;
  int64_t token = -1;
  double score = 0;

  // The lowest token wins among equal scores, in whatever order tokens are considered.
  void consider(int64_t other) {
    const uint32_t bits = mix32(key ^ mix32(static_cast<uint32_t>(other) + kGolden));
    const double found = static_cast<double>(logits[other]) / temperature + gumbel(bits);
    if (token < 0 || found > score || (found == score && other < token)) token = other, score = found;
  }
};

}  // namespace plx
