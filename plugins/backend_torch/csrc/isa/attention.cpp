// Attention to keys and values in pages. Softmax is taken block by block of keys, with a running largest score and sum
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); queries of several tokens and of the
// heads that share keys go through a block together, so that it is read once.
#include "isa.h"
#include "simd.h"

namespace plx::PLX_ISA {
namespace {

constexpr int64_t kKeys = 32;       // of a block
constexpr int64_t kQueries = 32;    // a span has at most: tokens times heads that share keys
constexpr int64_t kWidest = 256;    // numbers of a head
constexpr float kNever = -INFINITY;

struct State {  // of the queries of a span, over the blocks so far
  const float* query[kQueries];
  float most[kQueries];
  float total[kQueries];
  alignas(32) float scores[kQueries][kKeys];
  alignas(32) float values[kQueries * kWidest];  // [queries][dim]

  float* values_of(const Attention& a, int64_t q) { return values + q * a.dim; }
};

struct Block {  // of keys and values
  int64_t begin, count;
  const char* raw_keys[kKeys];  // where they lie
  const char* raw_values[kKeys];
  const float* keys[kKeys];  // the same if they are float32, and widened copies if not
  const float* values[kKeys];
};

struct Room {  // for those copies: [keys][dim], as heads of full width would lie in few sets of a cache
  alignas(32) float keys[kKeys * kWidest];
  alignas(32) float values[kKeys * kWidest];
};

// Finds a block, and has the processor fetch it while it works on the one before: rows of a page are too short and too far
// apart for it to see what comes.
void find_block(const Attention& a, const Span& span, int64_t begin, Block& block) {
  block.begin = begin;
  block.count = span.end - begin < kKeys ? span.end - begin : kKeys;
  const int64_t item = a.kind == kFloat32 ? 4 : 2, row = a.dim * item, size = a.table->page_size;
  const int32_t* page = a.table->pages + a.table->offsets[span.row] + begin / size;
  int64_t within = begin % size;
  for (int64_t i = 0; i < block.count; ++i, ++within) {
    if (within == size) within = 0, ++page;
    const int64_t at = ((*page * size + within) * a.kv_heads + span.kv_head) * row;
    block.raw_keys[i] = static_cast<const char*>(a.keys) + at;
    block.raw_values[i] = static_cast<const char*>(a.values) + at;
    for (int64_t line = 0; line < row; line += 64) {
      __builtin_prefetch(block.raw_keys[i] + line);
      __builtin_prefetch(block.raw_values[i] + line);
    }
  }
}

PLX_INLINE void widen_row(const char* from, int64_t count, float* to) {
  const uint16_t* const bits = reinterpret_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; i += 8) {
#if defined(__AVX2__)
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + i)));
    save(to + i, reinterpret_cast<F8>(_mm256_slli_epi32(words, 16)));
#else
    for (int64_t lane = i; lane < i + 8; ++lane) to[lane] = widen(bits[lane]);
#endif
  }
}

void open_block(const Attention& a, Block& block, Room& room) {
  for (int64_t i = 0; i < block.count; ++i) {
    if (a.kind == kFloat32) {
      block.keys[i] = reinterpret_cast<const float*>(block.raw_keys[i]);
      block.values[i] = reinterpret_cast<const float*>(block.raw_values[i]);
    } else {
      widen_row(block.raw_keys[i], a.dim, room.keys + i * a.dim);
      widen_row(block.raw_values[i], a.dim, room.values + i * a.dim);
      block.keys[i] = room.keys + i * a.dim;
      block.values[i] = room.values + i * a.dim;
    }
  }
  for (int64_t i = block.count; i < (block.count + 3) / 4 * 4; ++i) block.keys[i] = block.keys[block.count - 1];
}

PLX_INLINE void save_sums(const F8 (&parts)[4], float scale, float* out) {
#if defined(__AVX2__)
  const __m256 a = _mm256_hadd_ps(reinterpret_cast<__m256>(parts[0]), reinterpret_cast<__m256>(parts[1]));
  const __m256 b = _mm256_hadd_ps(reinterpret_cast<__m256>(parts[2]), reinterpret_cast<__m256>(parts[3]));
  const __m256 c = _mm256_hadd_ps(a, b);
  const __m128 d = _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
  _mm_storeu_ps(out, _mm_mul_ps(d, _mm_set1_ps(scale)));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum(parts[i]) * scale;
#endif
}

// Scores of Q queries for four keys at a time.
template <int Q>
void score(const Attention& a, const Block& block, State& state, int64_t first) {
  for (int64_t key = 0; key < block.count; key += 4) {
    F8 sums[Q][4] = {};
    for (int64_t i = 0; i < a.dim; i += 8) {
      F8 keys[4];
      for (int k = 0; k < 4; ++k) keys[k] = load(block.keys[key + k] + i);
      for (int q = 0; q < Q; ++q) {
        const F8 query = load(state.query[first + q] + i);
        for (int k = 0; k < 4; ++k) sums[q][k] += query * keys[k];
      }
    }
    for (int q = 0; q < Q; ++q) save_sums(sums[q], a.scale, state.scores[first + q] + key);
  }
}

// Adds to the values of Q queries those of a block, weighted; N vectors of 8 numbers at a time.
template <int Q, int N>
PLX_INLINE void gather_part(const Attention& a, const Block& block, State& state, int64_t first, const float* decay, int64_t at) {
  F8 sums[Q][N];
  for (int q = 0; q < Q; ++q) {
    for (int n = 0; n < N; ++n) sums[q][n] = load(state.values_of(a, first + q) + at + 8 * n) * decay[q];
  }
  for (int64_t key = 0; key < block.count; ++key) {
    const float* const values = block.values[key] + at;
    F8 weights[Q];
    for (int q = 0; q < Q; ++q) weights[q] = splat(state.scores[first + q][key]);
    for (int n = 0; n < N; ++n) {  // 12 sums, 3 weights and one of these are all registers there are
      const F8 value = load(values + 8 * n);
      for (int q = 0; q < Q; ++q) sums[q][n] += weights[q] * value;
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int n = 0; n < N; ++n) save(state.values_of(a, first + q) + at + 8 * n, sums[q][n]);
  }
}

template <int Q>
void gather_values(const Attention& a, const Block& block, State& state, int64_t first, const float* decay) {
  int64_t at = 0;
  for (; at + 32 <= a.dim; at += 32) gather_part<Q, 4>(a, block, state, first, decay, at);
  for (; at < a.dim; at += 8) gather_part<Q, 1>(a, block, state, first, decay, at);
}

// Makes weights of the scores of a query; returns what the values so far are to be multiplied by.
float weigh(const Attention& a, const Block& block, State& state, int64_t q, int64_t position) {
  float* const scores = state.scores[q];
  const int64_t oldest = a.window ? position - a.window + 1 - block.begin : 0;
  const int64_t newest = position - block.begin;
  if (a.cap > 0) {
    for (int64_t i = 0; i < kKeys; i += 8) save(scores + i, hyperbolic_tangent(load(scores + i) / a.cap) * a.cap);
  }
  for (int64_t i = 0; i < oldest && i < kKeys; ++i) scores[i] = kNever;
  for (int64_t i = newest + 1 < block.count ? newest + 1 < 0 ? 0 : newest + 1 : block.count; i < kKeys; ++i) scores[i] = kNever;
  F8 reach = splat(state.most[q]);
  for (int64_t i = 0; i < kKeys; i += 8) reach = larger(load(scores + i), reach);
  const float most = largest(reach);
  if (most == kNever) {
    memset(scores, 0, kKeys * 4);
    return 1.0f;
  }
  F8 total = splat(0.0f);
  for (int64_t i = 0; i < kKeys; i += 8) {
    const F8 weight = exponential(load(scores + i) - most);
    save(scores + i, weight);
    total += weight;
  }
  const float decay = exponential(splat(state.most[q] - most))[0];
  state.total[q] = state.total[q] * decay + sum(total);
  state.most[q] = most;
  return decay;
}

template <int Q>
void add_block(const Attention& a, const Span& span, const Block& block, State& state, int64_t first) {
  const int64_t shared = a.heads / a.kv_heads;
  float decay[Q];
  score<Q>(a, block, state, first);
  for (int q = 0; q < Q; ++q) decay[q] = weigh(a, block, state, first + q, span.position + (first + q) / shared);
  gather_values<Q>(a, block, state, first, decay);
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

void end_span(const Attention& a, const Span& span, State& state, int64_t queries) {
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t q = 0; q < queries; ++q) {
    if (span.partial) {
      float* const left = span.partial + q * (a.dim + 2);
      left[0] = state.most[q];
      left[1] = state.total[q];
      memcpy(left + 2, state.values_of(a, q), static_cast<size_t>(a.dim) * 4);
    } else {
      const int64_t head = span.kv_head * shared + q % shared;
      float* const out = a.out + ((span.token + q / shared) * a.heads + head) * a.dim;
      end_query(a, state.most[q], state.total[q], state.values_of(a, q), head, out);
    }
  }
}

void begin_span(const Attention& a, const Span& span, State& state, int64_t queries) {
  const int64_t shared = a.heads / a.kv_heads;
  for (int64_t q = 0; q < queries; ++q) {
    state.query[q] = a.query + (span.token + q / shared) * a.query_stride + (span.kv_head * shared + q % shared) * a.dim;
    state.most[q] = kNever;
    state.total[q] = 0;
    memset(state.values_of(a, q), 0, static_cast<size_t>(a.dim) * 4);
    memset(state.scores[q], 0, sizeof state.scores[q]);
  }
}

}  // namespace

void attend(const Attention& a, const Span& span) {
  State state;
  Room room;
  const int64_t queries = span.tokens * (a.heads / a.kv_heads);
  begin_span(a, span, state, queries);
  Block blocks[2];
  find_block(a, span, span.begin, blocks[0]);
  for (int64_t begin = span.begin, turn = 0; begin < span.end; begin += kKeys, turn ^= 1) {
    Block& block = blocks[turn];
    if (begin + kKeys < span.end) find_block(a, span, begin + kKeys, blocks[turn ^ 1]);
    open_block(a, block, room);
    int64_t q = 0;
    for (; q + 3 <= queries; q += 3) add_block<3>(a, span, block, state, q);
    for (; q < queries; ++q) add_block<1>(a, span, block, state, q);
  }
  end_span(a, span, state, queries);
}

void merge(const Attention& a, const float* const* partials, int64_t count, int64_t head, float* out) {
  float most = kNever, total = 0;
  float values[kWidest] = {};
  for (int64_t i = 0; i < count; ++i) most = partials[i][0] > most ? partials[i][0] : most;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = partials[i][0] == kNever ? 0.0f : expf(partials[i][0] - most);
    total += partials[i][1] * weight;
    for (int64_t n = 0; n < a.dim; ++n) values[n] += partials[i][2 + n] * weight;
  }
  end_query(a, most, total, values, head, out);
}

}  // namespace plx::PLX_ISA
