// Few queries: keys and values are read in place, and a query's numbers are in the order in which keys are read.
#pragma once

#include "attention.h"
#include "weigh.h"

namespace plx::PLX_ISA {
namespace {

template <class Cache, int Q>
void score_keys(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first) {
  for (int64_t key = 0; key < block.count; key += 4) {
    fetcher.advance(4);
    const char* rows[4];  // four keys; the last one is repeated if fewer are left
    PLX_UNROLL for (int k = 0; k < 4; ++k) rows[k] = block.key(least(key + k, block.count - 1));
    Floats sums[Q][4] = {};
    for (int64_t at = 0; at < state.width; at += kLanes * Cache::kParts) {
      PLX_UNROLL for (int part = 0; part < Cache::kParts; ++part) {
        Floats keys[4];
        PLX_UNROLL for (int k = 0; k < 4; ++k) keys[k] = Cache::read(rows[k] + at * Cache::kItem, part);
        PLX_UNROLL for (int q = 0; q < Q; ++q) {
          const Floats query = load(state.query + (first + q) * state.width + at + part * kLanes);
          PLX_UNROLL for (int k = 0; k < 4; ++k) add_product(sums[q][k], query, keys[k]);
        }
      }
    }
    PLX_UNROLL for (int q = 0; q < Q; ++q) save_sums(sums[q], state.scores + (first + q) * kFewKeys + key);
  }
}

// Adds the weighted values of a block to N vectors of the values of Q queries.
template <class Cache, int Q, int N>
PLX_INLINE void add_values(const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first, const float* decay, int64_t at) {
  Floats sums[Q][N];
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    PLX_UNROLL for (int n = 0; n < N; ++n) sums[q][n] = load(state.values + (first + q) * state.width + at + kLanes * n) * decay[q];
  }
  for (int64_t key = 0; key < block.count; ++key) {
    if (at == 0) fetcher.advance(1);
    Floats weights[Q];
    PLX_UNROLL for (int q = 0; q < Q; ++q) weights[q] = splat(state.scores[(first + q) * kFewKeys + key]);
    PLX_UNROLL for (int n = 0; n < N; ++n) {
      const int64_t chunk = at + n / Cache::kParts * Cache::kParts * kLanes;
      const Floats value = Cache::read(block.value(key) + chunk * Cache::kItem, n % Cache::kParts);
      PLX_UNROLL for (int q = 0; q < Q; ++q) add_product(sums[q][n], weights[q], value);
    }
  }
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    PLX_UNROLL for (int n = 0; n < N; ++n) save(state.values + (first + q) * state.width + at + kLanes * n, sums[q][n]);
  }
}

template <class Cache, int Q>
void add_block(const Attention& a, const AttentionTask& task, const KeyBlock& block, Fetcher& fetcher, const State& state, int64_t first) {
  const int64_t shared = a.heads / a.kv_heads;
  float decay[Q];
  score_keys<Cache, Q>(block, fetcher, state, first);
  for (int q = 0; q < Q; ++q) decay[q] = weigh(a, block, state, first + q, task.position + (first + q) / shared);
  int64_t at = 0;
  for (; at + 4 * kLanes <= state.width; at += 4 * kLanes) add_values<Cache, Q, 4>(block, fetcher, state, first, decay, at);
  for (; at < state.width; at += Cache::kParts * kLanes) add_values<Cache, Q, Cache::kParts>(block, fetcher, state, first, decay, at);
}

template <class Cache>
struct FewForm {
  static constexpr int64_t kItem = kFloatBytes;

  static void put_query(const float* from, float scale, int64_t dim, float* query) {
    for (int64_t i = 0; i < dim; ++i) query[Cache::find_place(i)] = from[i] * scale;
  }

  static void attend(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
    int64_t q = 0;
    for (; q + 3 <= state.queries; q += 3) add_block<Cache, 3>(a, task, block, fetcher, state, q);
    if (q + 2 == state.queries) add_block<Cache, 2>(a, task, block, fetcher, state, q);
    if (q + 1 == state.queries) add_block<Cache, 1>(a, task, block, fetcher, state, q);
  }

  static void restore_order(const State& state) {  // of the results
    if (Cache::kParts > 1) restore_places(state, [](int64_t i) { return Cache::find_place(i); });
  }
};

}  // namespace
}  // namespace plx::PLX_ISA
