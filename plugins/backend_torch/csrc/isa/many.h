// Many queries: keys and values are packed into panels, and multiplied as weights are: in float32, or in pairs of bfloat16.
#pragma once

#include "attention.h"
#include "tile.h"
#include "weigh.h"

namespace plx::PLX_ISA {
namespace {

struct Product {  // of x [queries][count], with a stride in bytes, and panels [width / kPanel][count][kPanel]
  const void* x;
  int64_t stride, count;
  const float* panels;
  int64_t width;
};

// Adds a product to sums [queries], with a stride; or sets them, if they are fresh. Each product prefetches half of
// the next block.
template <class Form>
void multiply_panels(const State& state, const Product& product, bool is_fresh, float* sums, int64_t stride, Fetcher& fetcher) {
  static constexpr float kNothing[kPanel] = {};
  Tile tile{};
  tile.x_stride = product.stride;
  tile.steps = product.count / Form::kInputs;
  tile.pace = kStepBytes;
  for (int64_t row = 0, rows = 0; row < state.queries; row += rows) {
    rows = least(state.queries - row, kTileRows);
    fetcher.advance(divide_up(fetcher.next.count * rows, state.queries));
    tile.x = static_cast<const char*>(product.x) + row * product.stride;
    for (int64_t panel = 0, some = 0; panel < product.width / kPanel; panel += some) {
      some = round_down(least(product.width / kPanel - panel, count_panels(rows)));
      for (int64_t p = 0; p < some; ++p) {
        tile.w[p] = reinterpret_cast<const char*>(product.panels) + (panel + p) * tile.steps * kStepBytes;
        float* const at = sums + row * stride + (panel + p) * kPanel;
        tile.sums[p] = is_fresh ? Sums{at, stride, kNothing, 0} : Sums{at, stride, at, stride};
      }
      Form::multiply(static_cast<int>(rows), static_cast<int>(some), tile);
    }
  }
}

template <class Form>
void attend_many(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
  const int64_t shared = a.heads / a.kv_heads, keys = round_up(block.count);
  Form::pack_keys(block, state);
  Form::pack_values(block, state);
  const Product scores{state.query, state.width * Form::kItem, state.width, state.keys, keys};
  multiply_panels<Form>(state, scores, true, state.scores, state.block, fetcher);
  for (int64_t q = 0; q < state.queries; ++q) {
    const Floats decay = splat(Form::weigh(a, block, state, q, task.position + q / shared));
    float* const values = state.values + q * state.width;
    for (int64_t at = 0; at < state.width && decay[0] != 1.0f; at += kLanes) save(values + at, load(values + at) * decay);
  }
  const Product values{state.scores, state.block * kFloatBytes, keys, state.panels, state.width};
  multiply_panels<Form>(state, values, false, state.values, state.width, fetcher);
}

// The forms of queries and weights, and of the panels: kItem is the bytes of a number, kInputs the numbers of a step.

template <class Cache>
struct FloatForm {
  static constexpr int64_t kItem = kFloatBytes, kInputs = 1;

  static void put_query(const float* from, float scale, int64_t dim, float* query) {
    for (int64_t i = 0; i < dim; ++i) query[i] = from[i] * scale;
  }

  static void pack_keys(const KeyBlock& block, const State& state) {  // [keys / kPanel][width][kPanel]
    for (int64_t first = 0; first < round_up(block.count); first += kLanes) {
      float* const panel = state.keys + first / kPanel * kPanel * state.width + first % kPanel;
      for (int64_t at = 0; at < state.width; at += kLanes) {
        Floats rows[kLanes] = {};
        for (int64_t i = 0; i < kLanes && first + i < block.count; ++i) rows[i] = Cache::widen(block.key(first + i) + at * Cache::kItem);
        transpose(rows);
        for (int64_t i = 0; i < kLanes; ++i) save(panel + (at + i) * kPanel, rows[i]);
      }
    }
  }

  static void pack_values(const KeyBlock& block, const State& state) {  // [width / kPanel][keys][kPanel]
    const int64_t keys = round_up(block.count);
    for (int64_t key = 0; key < keys; ++key) {
      for (int64_t at = 0; at < state.width; at += kLanes) {
        const Floats row = key < block.count ? Cache::widen(block.value(key) + at * Cache::kItem) : splat(0.0f);
        save(state.panels + at / kPanel * kPanel * keys + key * kPanel + at % kPanel, row);
      }
    }
  }

  static float weigh(const Attention& a, const KeyBlock& block, const State& state, int64_t q, int64_t position) {
    return PLX_ISA::weigh(a, block, state, q, position);
  }

  static void attend(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
    attend_many<FloatForm>(a, task, state, block, fetcher);
  }

  static void restore_order(const State&) {}

  static void multiply(int rows, int panels, const Tile& tile) { multiply_float_tile(rows, panels, tile); }
};

#if defined(PLX_PAIRS)
struct PairForm {  // of keys and values in bfloat16, which are not widened
  static constexpr int64_t kItem = kHalfBytes, kInputs = 2;

  static void put_query(const float* from, float scale, int64_t dim, float* query) {
    uint16_t* const out = reinterpret_cast<uint16_t*>(query);
    for (int64_t i = 0; i < dim; ++i) out[i] = narrow_one(from[i] * scale);
  }

  static void pack_keys(const KeyBlock& block, const State& state) {  // [keys / kPanel][width / 2][kPanel][2]
    for (int64_t first = 0; first < round_up(block.count); first += kLanes) {
      float* const panel = state.keys + first / kPanel * kPanel * state.width / kInputs + first % kPanel;
      for (int64_t at = 0; at < state.width; at += kInputs * kLanes) {
        Floats rows[kLanes] = {};  // of pairs
        for (int64_t i = 0; i < kLanes && first + i < block.count; ++i) rows[i] = as_floats(load_words(block.key(first + i) + at * kItem));
        transpose(rows);
        for (int64_t i = 0; i < kLanes; ++i) save(panel + (at / kInputs + i) * kPanel, rows[i]);
      }
    }
  }

  static void pack_values(const KeyBlock& block, const State& state) {  // [width / kPanel][keys / 2][kPanel][2]
    const int64_t keys = round_up(block.count);
    for (int64_t key = 0; key < keys; key += kInputs) {
      for (int64_t at = 0; at < state.width; at += kPanel) {
        static constexpr char kNothing[kPanel * kItem] = {};
        const char* const first = key < block.count ? block.value(key) + at * kItem : kNothing;
        const char* const second = key + 1 < block.count ? block.value(key + 1) + at * kItem : kNothing;
        for (int64_t i = 0; i < kPanel; i += kLanes) {
          save(state.panels + (at * keys + key * kPanel) / kInputs + i, join_bfloat16(first + i * kItem, second + i * kItem));
        }
      }
    }
  }

  static float weigh(const Attention& a, const KeyBlock& block, const State& state, int64_t q, int64_t position) {
    return weigh_pairs(a, block, state, q, position);
  }

  static void attend(const Attention& a, const AttentionTask& task, const State& state, const KeyBlock& block, Fetcher& fetcher) {
    attend_many<PairForm>(a, task, state, block, fetcher);
  }

  static void restore_order(const State&) {}

  static void multiply(int rows, int panels, const Tile& tile) { multiply_pair_tile(rows, panels, tile); }
};
#endif

}  // namespace
}  // namespace plx::PLX_ISA
