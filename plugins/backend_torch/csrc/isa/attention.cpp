// Attention to keys and values in pages. Softmax is computed block by block, with a running largest score and sum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018); all queries of several tokens, and of the heads that share
// keys, use a block together (Dao et al., "FlashAttention", 2022), so that it is read once.
#include "attention.h"

#include "isa.h"
#include "tile.h"

namespace plx::PLX_ISA {
namespace {

constexpr float kNever = -INFINITY;

// Turns the scores of a query into weights; returns the factor for the values so far.
float weigh(const Attention& a, const KeyBlock& block, const State& state, int64_t q, int64_t position) {
  float* const scores = state.scores + q * kKeyBlock;
  const int64_t oldest = a.window ? position - a.window + 1 - block.begin : 0;
  const int64_t newest = position - block.begin + 1, seen = least(newest, block.count);
  if (a.cap > 0) {
    for (int64_t i = 0; i < kKeyBlock; i += kLanes) save(scores + i, hyperbolic_tangent(load(scores + i) / a.cap) * a.cap);
  }
  for (int64_t i = 0; i < oldest && i < kKeyBlock; ++i) scores[i] = kNever;
  for (int64_t i = seen < 0 ? 0 : seen; i < kKeyBlock; ++i) scores[i] = kNever;
  Floats reach = splat(state.most[q]);
  for (int64_t i = 0; i < kKeyBlock; i += kLanes) reach = larger(load(scores + i), reach);
  const float most = largest(reach);
  if (most == kNever) {
    memset(scores, 0, kKeyBlock * kFloatBytes);
    return 1.0f;
  }
  Floats total = splat(0.0f);
  for (int64_t i = 0; i < kKeyBlock; i += kLanes) {
    const Floats weight = exponential(load(scores + i) - most);
    save(scores + i, weight);
    total += weight;
  }
  const float decay = state.most[q] == most ? 1.0f : exponential(splat(state.most[q] - most))[0];
  state.total[q] = state.total[q] * decay + sum(total);
  state.most[q] = most;
  return decay;
}

void end_query(const Attention& a, float most, float total, const float* values, int64_t head, float* out) {
  float decay = 1.0f;
  if (a.sinks) {
    const float sink = a.sinks[head];
    const float reach = sink > most ? sink : most;
    decay = expf(most - reach);
    total = total * decay + expf(sink - reach);
  }
  const float scale = total > 0 ? decay / total : 0.0f;
  for (int64_t i = 0; i < a.dim; ++i) out[i] = values[i] * scale;
}

// Writes the results of the queries of one key head.
void end_head(const Attention& a, const AttentionTask& task, const State& state, int64_t kv_head) {
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t q = 0; q < state.queries; ++q) {
    float* const values = state.values + q * state.width;
    const int64_t head = (task.kv_head + kv_head) * shared + q % shared;
    if (task.partial) {
      const int64_t place = (q / shared * task.kv_heads + kv_head) * shared + q % shared;
      float* const partial = task.partial + place * (a.dim + 2);
      partial[0] = state.most[q];
      partial[1] = state.total[q];
      memcpy(partial + 2, values, static_cast<size_t>(a.dim * kFloatBytes));
    } else {
      float* const out = a.out + ((task.token + q / shared) * a.heads + head) * a.dim;
      end_query(a, state.most[q], state.total[q], values, head, out);
    }
  }
}

// Few queries: keys and values are read in place, and a query's numbers are in the order in which keys are read.

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
    PLX_UNROLL for (int q = 0; q < Q; ++q) save_sums(sums[q], state.scores + (first + q) * kKeyBlock + key);
  }
}

// Adds the weighted values of a block to N vectors of the values of Q queries.
template <class Cache, int Q, int N>
PLX_INLINE void add_values(const KeyBlock& block, const State& state, int64_t first, const float* decay, int64_t at) {
  Floats sums[Q][N];
  PLX_UNROLL for (int q = 0; q < Q; ++q) {
    PLX_UNROLL for (int n = 0; n < N; ++n) sums[q][n] = load(state.values + (first + q) * state.width + at + kLanes * n) * decay[q];
  }
  for (int64_t key = 0; key < block.count; ++key) {
    Floats weights[Q];
    PLX_UNROLL for (int q = 0; q < Q; ++q) weights[q] = splat(state.scores[(first + q) * kKeyBlock + key]);
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
  for (; at + 4 * kLanes <= state.width; at += 4 * kLanes) add_values<Cache, Q, 4>(block, state, first, decay, at);
  for (; at < state.width; at += Cache::kParts * kLanes) add_values<Cache, Q, Cache::kParts>(block, state, first, decay, at);
}

template <class Cache>
void attend_few(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
  int64_t q = 0;
  for (; q + 3 <= state.queries; q += 3) add_block<Cache, 3>(a, task, block, fetcher, state, q);
  if (q + 2 == state.queries) add_block<Cache, 2>(a, task, block, fetcher, state, q);
  if (q + 1 == state.queries) add_block<Cache, 1>(a, task, block, fetcher, state, q);
}

// Many queries: keys and values are packed into panels of float32, and multiplied as weights are.

template <class Cache>
void pack_keys(const KeyBlock& block, const State& state) {  // [keys / kPanel][width][kPanel]
  for (int64_t first = 0; first < kKeyBlock; first += kLanes) {
    float* const panel = state.keys + first / kPanel * kPanel * state.width + first % kPanel;
    for (int64_t at = 0; at < state.width; at += kLanes) {
      Floats rows[kLanes] = {};
      for (int64_t i = 0; i < kLanes && first + i < block.count; ++i) rows[i] = Cache::widen(block.key(first + i) + at * Cache::kItem);
      transpose(rows);
      for (int64_t i = 0; i < kLanes; ++i) save(panel + (at + i) * kPanel, rows[i]);
    }
  }
}

template <class Cache>
void pack_values(const KeyBlock& block, const State& state) {  // [width / kPanel][keys][kPanel]
  for (int64_t key = 0; key < kKeyBlock; ++key) {
    for (int64_t at = 0; at < state.width; at += kLanes) {
      const Floats row = key < block.count ? Cache::widen(block.value(key) + at * Cache::kItem) : splat(0.0f);
      save(state.panels + at / kPanel * kPanel * kKeyBlock + key * kPanel + at % kPanel, row);
    }
  }
}

// Adds the products of x, [queries][count], and panels [width / kPanel][count][kPanel] to sums, [queries][width].
void multiply_panels(const State& state, const float* x, int64_t count, const float* panels, float* sums, int64_t width) {
  Tile tile{};
  tile.x_stride = count * kFloatBytes;
  tile.steps = count;
  tile.pace = kStepBytes;
  for (int64_t row = 0, rows = 0; row < state.queries; row += rows) {
    rows = least(state.queries - row, kTileRows);
    tile.x = reinterpret_cast<const char*>(x + row * count);
    for (int64_t panel = 0, some = 0; panel < width / kPanel; panel += some) {
      some = round_down(least(width / kPanel - panel, count_panels(rows)));
      for (int64_t p = 0; p < some; ++p) {
        tile.w[p] = reinterpret_cast<const char*>(panels + (panel + p) * kPanel * count);
        float* const at = sums + row * width + (panel + p) * kPanel;
        tile.sums[p] = {at, width, at, width};
      }
      multiply_float_tile(static_cast<int>(rows), static_cast<int>(some), tile);
    }
  }
}

template <class Cache>
void attend_many(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
  const int64_t shared = a.heads / a.kv_heads;
  pack_keys<Cache>(block, state);
  pack_values<Cache>(block, state);
  fetcher.advance(kKeyBlock);
  memset(state.scores, 0, static_cast<size_t>(state.queries * kKeyBlock * kFloatBytes));
  multiply_panels(state, state.query, state.width, state.keys, state.scores, kKeyBlock);
  for (int64_t q = 0; q < state.queries; ++q) {
    const Floats decay = splat(weigh(a, block, state, q, task.position + q / shared));
    float* const values = state.values + q * state.width;
    for (int64_t at = 0; at < state.width && decay[0] != 1.0f; at += kLanes) save(values + at, load(values + at) * decay);
  }
  multiply_panels(state, state.scores, kKeyBlock, state.panels, state.values, state.width);
}

// Copies the queries of one key head, scaled, with their numbers in the order in which keys are read.
template <class Cache>
void begin_head(const Attention& a, const AttentionTask& task, const State& state, int64_t kv_head) {
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t q = 0; q < state.queries; ++q) {
    const int64_t head = (task.kv_head + kv_head) * shared + q % shared;
    const float* const from = a.query + (task.token + q / shared) * a.query_stride + head * a.dim;
    float* const query = state.query + q * state.width;
    memset(query, 0, static_cast<size_t>(state.width * kFloatBytes));
    for (int64_t i = 0; i < a.dim; ++i) query[state.queries > kFewQueries ? i : Cache::find_place(i)] = from[i] * a.scale;
    state.most[q] = kNever;
    state.total[q] = 0;
  }
  memset(state.values, 0, static_cast<size_t>(state.queries * state.width * kFloatBytes));
}

// Reorders the numbers of the results as they are in memory.
template <class Cache>
void restore_order(const State& state) {
  for (int64_t q = 0; q < state.queries; ++q) {
    float* const values = state.values + q * state.width;
    memcpy(state.query, values, static_cast<size_t>(state.width * kFloatBytes));
    for (int64_t i = 0; i < state.width; ++i) values[i] = state.query[Cache::find_place(i)];
  }
}

// Attends to one block of keys, head by head, while the next block is prefetched.
template <class Cache>
void attend_block(const Attention& a, const AttentionTask& task, const State& state, KeyBlock& block, const KeyBlock& next) {
  const int64_t row = a.dim * Cache::kItem;
  Fetcher fetcher{next, row * task.kv_heads, task.kv_heads};
  for (int64_t head = 0; head < task.kv_heads; ++head) {
    block.offset = head * row;
    const State mine = state.find_head(head);
    const KeyBlock whole = a.dim == state.width ? block : pad_rows(a, state, block);
    state.queries > kFewQueries ? attend_many<Cache>(a, task, mine, whole, fetcher) : attend_few<Cache>(a, task, mine, whole, fetcher);
  }
}

template <class Cache>
void run_task(const Attention& a, const AttentionTask& task, char* scratch) {
  const State state(a, task.tokens * (a.heads / a.kv_heads), task.kv_heads, scratch);
  for (int64_t head = 0; head < task.kv_heads; ++head) begin_head<Cache>(a, task, state.find_head(head), head);
  memset(state.scores, 0, static_cast<size_t>(state.queries * kKeyBlock * kFloatBytes));
  KeyBlock blocks[2];
  find_keys(a, task, task.begin, blocks[0]);
  for (int64_t begin = task.begin, turn = 0; begin < task.end; begin += kKeyBlock, turn ^= 1) {
    KeyBlock& next = blocks[turn ^ 1];
    next.count = 0;
    if (begin + kKeyBlock < task.end) find_keys(a, task, begin + kKeyBlock, next);
    attend_block<Cache>(a, task, state, blocks[turn], next);
  }
  for (int64_t head = 0; head < task.kv_heads; ++head) {
    const State mine = state.find_head(head);
    if (state.queries <= kFewQueries && Cache::kParts > 1) restore_order<Cache>(mine);
    end_head(a, task, mine, head);
  }
}

}  // namespace

int64_t attend_bytes(const Attention& a) {
  return most(State(a, kQueryBlock, 1, nullptr).bytes, State(a, kFewQueries, a.kv_heads, nullptr).bytes);
}

void attend(const Attention& a, const AttentionTask& task, char* scratch) {
  return a.kind == kFloat32 ? run_task<Float32Cache>(a, task, scratch) : run_task<Bfloat16Cache>(a, task, scratch);
}

void merge(const Attention& a, float* const* partials, int64_t count, int64_t head, float* out) {
  float* const first = partials[0];
  float most = kNever;
  for (int64_t i = 0; i < count; ++i) most = partials[i][0] > most ? partials[i][0] : most;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = partials[i][0] == kNever ? 0.0f : expf(partials[i][0] - most);
    for (int64_t n = 1; n < a.dim + 2; ++n) first[n] = (i ? first[n] : 0.0f) + partials[i][n] * weight;
  }
  end_query(a, most, first[1], first + 2, head, out);
}

}  // namespace plx::PLX_ISA
