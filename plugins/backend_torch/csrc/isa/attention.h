// The data of an attention: the keys and values of a block, in place, and the state of the queries, in scratch memory.
#pragma once

#include "simd.h"

namespace plx::PLX_ISA {
namespace {

// The dtypes of cached keys and values. A vector of 4 * kLanes bytes is read as kParts vectors of floats; the number with index
// i in memory has index find_place(i) in these. kItem is the bytes of a number.
struct Float32Cache {
  static constexpr int kParts = 1;
  static constexpr int64_t kItem = kFloatBytes;
  PLX_INLINE int64_t find_place(int64_t i) { return i; }
  PLX_INLINE Floats read(const char* p, int) { return load(reinterpret_cast<const float*>(p)); }
  PLX_INLINE Floats widen(const char* p) { return load(reinterpret_cast<const float*>(p)); }
};

struct Bfloat16Cache {
  static constexpr int kParts = 2;  // numbers with even indices, and those with odd ones
  static constexpr int64_t kItem = kHalfBytes;
  PLX_INLINE int64_t find_place(int64_t i) { return i / (2 * kLanes) * 2 * kLanes + i % 2 * kLanes + i % (2 * kLanes) / 2; }
  PLX_INLINE Floats read(const char* p, int part) { return part == 0 ? widen_even(load_words(p)) : widen_odd(load_words(p)); }

  PLX_INLINE Floats widen(const char* p) { return as_floats(widen_bfloat16(p)); }  // kLanes numbers in order
};

PLX_INLINE int64_t round_up(int64_t keys) { return divide_up(keys, kPanel) * kPanel; }

struct KeyBlock {
  int64_t begin, count;
  int64_t offset = 0;  // bytes from the first head of the task
  const char* keys[kManyKeys];
  const char* values[kManyKeys];
  int64_t scales[kManyKeys];  // of int8: where the scale of the first head of the task is

  const char* key(int64_t i) const { return keys[i] + offset; }
  const char* value(int64_t i) const { return values[i] + offset; }
};

// The state of the queries of a task over the blocks so far, in scratch memory; without scratch memory, only its size.
struct State {
  int64_t queries, width, bytes = 0;  // queries: per key head; width: of a head, rounded up to whole vectors
  int64_t block;  // the most keys of a block
  float* query;   // [key heads][queries][width]; bfloat16 if they are multiplied as such
  float* values;  // [key heads][queries][width]: the weighted sum of values so far
  float* most;    // [key heads][queries]: the largest score so far
  float* total;   // [key heads][queries]: the sum of weights so far
  float* scores;  // [queries][block]
  float* keys;    // keys of the block, in panels
  float* panels;  // values of the block, in panels
  float* copies;  // padded copies of keys and values, if heads are not whole vectors

  State(const Attention& a, int64_t count, int64_t kv_heads, char* scratch) : queries(count) {
    block = queries > kFewQueries ? kManyKeys : kFewKeys;
    const int64_t whole = a.kind == kFloat32 ? kPanel : a.kind == kInt8 && block == kFewKeys ? kCacheLine : plx::most(2 * kLanes, kPanel);
    width = divide_up(a.dim, whole) * whole;
    query = take(scratch, kv_heads * queries * width);
    values = take(scratch, kv_heads * queries * width);
    most = take(scratch, kv_heads * queries);
    total = take(scratch, kv_heads * queries);
    scores = take(scratch, queries * block);
    keys = take(scratch, width * block);
    panels = take(scratch, width * block);
    copies = take(scratch, a.dim == width && a.kind != kInt8 ? 0 : 2 * width * block);
  }

  // Returns the state of the queries of one key head.
  State find_head(int64_t head) const {
    State state = *this;
    state.query += head * queries * width;
    state.values += head * queries * width;
    state.most += head * queries;
    state.total += head * queries;
    return state;
  }

 private:
  float* take(char* scratch, int64_t count) {
    float* const place = scratch ? reinterpret_cast<float*>(scratch + bytes) : nullptr;
    bytes += divide_up(count * kFloatBytes, kCacheLine) * kCacheLine;
    return place;
  }
};

// Puts the values of all queries in order: number i is at `find_place(i)`. The first query is overwritten.
template <class FindPlace>
void restore_places(const State& state, FindPlace find_place) {
  for (int64_t q = 0; q < state.queries; ++q) {
    float* const values = state.values + q * state.width;
    memcpy(state.query, values, static_cast<size_t>(state.width * kFloatBytes));
    for (int64_t i = 0; i < state.width; ++i) values[i] = state.query[find_place(i)];
  }
}

PLX_INLINE int64_t item_bytes(const Attention& a) { return a.kind == kFloat32 ? kFloatBytes : a.kind == kBfloat16 ? kHalfBytes : 1; }

PLX_INLINE void find_keys(const Attention& a, const AttentionTask& task, int64_t begin, int64_t most, KeyBlock& block) {
  block.begin = begin;
  block.count = least(task.end - begin, most);
  const int64_t row = a.dim * item_bytes(a), size = a.table->page_size;
  const int32_t* page = a.table->pages + a.table->offsets[task.row] + begin / size;
  int64_t within = begin % size;
  for (int64_t i = 0; i < block.count; ++i, ++within) {
    if (within == size) within = 0, ++page;
    const int64_t head = (*page * size + within) * a.kv_heads + task.kv_head;
    block.keys[i] = static_cast<const char*>(a.keys) + head * row;
    block.values[i] = static_cast<const char*>(a.values) + head * row;
    block.scales[i] = head;
  }
}

// Prefetches the next block evenly while the current one is computed: pages are too short and too far apart for the hardware
// prefetcher, and the processor can wait for only a few cache lines at once.
struct Fetcher {
  const Attention& a;
  const KeyBlock& next;
  int64_t bytes;  // of a row: all key heads of a task
  int64_t heads;  // rows computed for each row that is prefetched
  int64_t done = 0, credit = 0;

  // Tells that some rows were computed: keys, or values.
  void advance(int64_t rows) {
    for (credit += rows; credit >= heads && done < 2 * next.count; credit -= heads, ++done) {
      const int64_t key = done / 2;
      const bool is_key = done % 2 == 0;
      const char* const row = is_key ? next.keys[key] : next.values[key];
      for (int64_t line = 0; line < bytes; line += kCacheLine) __builtin_prefetch(row + line);
      if (a.kind == kInt8) __builtin_prefetch((is_key ? a.key_scales : a.value_scales) + next.scales[key]);
    }
  }
};

// Returns a block of copies of keys and values, padded with zeros to whole vectors.
inline KeyBlock pad_rows(const Attention& a, const State& state, const KeyBlock& block) {
  const size_t item = static_cast<size_t>(item_bytes(a)), bytes = item * static_cast<size_t>(a.dim);
  const size_t width = item * static_cast<size_t>(state.width);
  KeyBlock padded = block;
  padded.offset = 0;
  char* copy = reinterpret_cast<char*>(state.copies);
  for (int64_t i = 0; i < 2 * block.count; ++i, copy += width) {
    const bool is_key = i < block.count;
    memcpy(copy, is_key ? block.key(i) : block.value(i - block.count), bytes);
    memset(copy + bytes, 0, width - bytes);
    (is_key ? padded.keys[i] : padded.values[i - block.count]) = copy;
  }
  return padded;
}

PLX_INLINE void widen_row(const int8_t* codes, float scale, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; ++i) out[i] = static_cast<float>(codes[i]) * scale;
}

PLX_INLINE void widen_row(const int8_t* codes, float scale, int64_t dim, uint16_t* out) {
  for (int64_t i = 0; i < dim; ++i) out[i] = narrow_one(static_cast<float>(codes[i]) * scale);
}

// Returns a block of copies of int8 keys and values as the numbers that they stand for, padded with zeros to whole vectors.
template <class Number>
KeyBlock widen_rows(const Attention& a, const State& state, const KeyBlock& block) {
  KeyBlock wide = block;
  wide.offset = 0;
  Number* copy = reinterpret_cast<Number*>(state.copies);
  for (int64_t i = 0; i < 2 * block.count; ++i, copy += state.width) {
    const bool is_key = i < block.count;
    const int64_t key = is_key ? i : i - block.count;
    const int8_t* const codes = reinterpret_cast<const int8_t*>(is_key ? block.key(key) : block.value(key));
    const uint16_t* const scales = is_key ? a.key_scales : a.value_scales;
    widen_row(codes, widen(scales[block.scales[key] + block.offset / a.dim]), a.dim, copy);
    memset(copy + a.dim, 0, static_cast<size_t>(state.width - a.dim) * sizeof(Number));
    (is_key ? wide.keys[key] : wide.values[key]) = reinterpret_cast<const char*>(copy);
  }
  return wide;
}

#if !defined(PLX_NEON)
// Writes the sum of each of four vectors.
PLX_INLINE void save_sums(const Floats (&parts)[4], float* out) {
#if defined(__AVX2__)
  const __m256 first = _mm256_hadd_ps(add_halves(parts[0]), add_halves(parts[1]));
  const __m256 all = _mm256_hadd_ps(first, _mm256_hadd_ps(add_halves(parts[2]), add_halves(parts[3])));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum(parts[i]);
#endif
}
#endif

#if defined(__clang__)
#define PLX_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PLX_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// Transposes: each stage interleaves the rows of both halves, which rotates the bits of a number's address.
PLX_INLINE void transpose(Floats (&rows)[kLanes]) {
  PLX_UNROLL for (int stage = 1; stage < kLanes; stage *= 2) {
    Floats turned[kLanes];
    PLX_UNROLL for (int i = 0; i < kLanes / 2; ++i) {
      const Floats upper = rows[i], lower = rows[i + kLanes / 2];
#if defined(__AVX512F__)
      turned[2 * i] = PLX_SHUFFLE(upper, lower, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      turned[2 * i + 1] = PLX_SHUFFLE(upper, lower, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(PLX_NEON)
      turned[2 * i] = PLX_SHUFFLE(upper, lower, 0, 4, 1, 5);
      turned[2 * i + 1] = PLX_SHUFFLE(upper, lower, 2, 6, 3, 7);
#else
      turned[2 * i] = PLX_SHUFFLE(upper, lower, 0, 8, 1, 9, 2, 10, 3, 11);
      turned[2 * i + 1] = PLX_SHUFFLE(upper, lower, 4, 12, 5, 13, 6, 14, 7, 15);
#endif
    }
    PLX_UNROLL for (int i = 0; i < kLanes; ++i) rows[i] = turned[i];
  }
}

}  // namespace
}  // namespace plx::PLX_ISA
