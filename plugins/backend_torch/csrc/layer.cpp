// Whole layers in one call: grouped-query attention and a gated MLP, each after a norm, and each added to the residual.
#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

struct Norm {
  const float* weight;  // null: no norm
  float eps, offset;
};

struct Layer {
  const Weight* into;  // queries, keys and values, stacked by rows
  const Weight* back;
  const Weight* up;  // gate and up, stacked by rows
  const Weight* down;
  Norm attention_norm, mixer_norm, query_norm, key_norm;
  int32_t gate;
  int32_t adapted[4];  // the numbers of the weights for adapters, in the order above; negative: it takes none
  int32_t unused;
};

struct Rope {  // cosines and sines of the tokens: [tokens][half] each
  const float* cos;
  const float* sin;
  int64_t half;
};

thread_local Scratch scratch;

void normalize_rows(const Norm& norm, const float* x, int64_t rows, int64_t dim, float* out) {
  share_rows(rows, dim, [&](int64_t row) {
    kernels->normalize(x + row * dim, nullptr, norm.weight, norm.offset, norm.eps, dim, out + row * dim);
  });
}

void rotate_heads(const Norm& norm, const Rope& rope, float* x, int64_t heads, int64_t dim, int64_t token) {
  for (int64_t head = 0; head < heads; ++head, x += dim) {
    if (norm.weight) kernels->normalize(x, nullptr, norm.weight, norm.offset, norm.eps, dim, x);
    if (rope.half) kernels->rotate(x, rope.cos + token * rope.half, rope.sin + token * rope.half, rope.half);
  }
}

// Applies norms and rope to the queries and keys of the first product, and stores keys and values.
void prepare_heads(const Layer& layer, const Attention& a, const Rope& rope, const int64_t* slots, float* mixed, int64_t tokens) {
  const int64_t width = layer.into->out, inner = a.kv_heads * a.dim;
  const RowPool key_pool{a.keys, a.key_scales, a.kind, a.kv_heads, a.dim};
  const RowPool value_pool{a.values, a.value_scales, a.kind, a.kv_heads, a.dim};
  share_rows(tokens, width * 2, [&](int64_t token) {
    float* const queries = mixed + token * width;
    float* const keys = queries + a.heads * a.dim;
    rotate_heads(layer.query_norm, rope, queries, a.heads, a.dim, token);
    rotate_heads(layer.key_norm, rope, keys, a.kv_heads, a.dim, token);
    store_row(keys, slots[token], key_pool);
    store_row(keys + inner, slots[token], value_pool);
  });
}

struct Buffers {  // the intermediate results of a layer, [tokens] each
  float *normed, *mixed, *attended, *gated;
  float* both;  // what is gated and what gates, for adapters

  Buffers(const Layer& layer, int64_t tokens, bool has_adapters) {
    const int64_t both_width = has_adapters ? layer.up->out : 0;
    const int64_t widths[] = {layer.into->in, layer.into->out, layer.back->in, layer.down->in, both_width};
    const int64_t width = widths[0] + widths[1] + widths[2] + widths[3] + widths[4];
    float* room = reinterpret_cast<float*>(scratch.take(tokens * width * kFloatBytes));
    float** const buffers[] = {&normed, &mixed, &attended, &gated, &both};
    for (int i = 0; i < 5; ++i) {
      *buffers[i] = room;
      if (room) room += tokens * widths[i];
    }
  }
};

struct Work {  // what the layers of a step have in common
  const Rope& rope;
  const int64_t* slots;
  const AdapterStep* adapters;  // null: none
};

// A product, with what adapters add to it.
Status multiply_adapted(const Weight& weight, const AdapterStep* adapters, int32_t number, const Rows& rows, const Output& output) {
  if (multiply_rows(weight, rows, output)) return kOutOfMemory;
  return adapt_rows(adapters, number, rows, output);
}

Status run_attention(const Layer& layer, Attention a, const Work& work, const Rows& hidden, float* out) {
  const int64_t tokens = hidden.count, width = layer.into->in;
  const Buffers buffers(layer, tokens, work.adapters);
  if (!buffers.normed) return kOutOfMemory;
  normalize_rows(layer.attention_norm, hidden.x, tokens, width, buffers.normed);
  const Output mixed{buffers.mixed, layer.into->out, nullptr, 0}, result{out, width, hidden.x, width};
  if (multiply_adapted(*layer.into, work.adapters, layer.adapted[0], Rows{buffers.normed, width, tokens}, mixed)) return kOutOfMemory;
  prepare_heads(layer, a, work.rope, work.slots, buffers.mixed, tokens);
  a.query = buffers.mixed;
  a.query_stride = layer.into->out;
  a.out = buffers.attended;
  if (attend_rows(a)) return kOutOfMemory;
  return multiply_adapted(*layer.back, work.adapters, layer.adapted[1], Rows{buffers.attended, layer.back->in, tokens}, result);
}

// The gated product, in two steps: adapters add to what is gated and to what gates.
Status multiply_both(const Layer& layer, const AdapterStep* adapters, const Rows& rows, const Buffers& buffers) {
  const int64_t inner = layer.down->in;
  const Output both{buffers.both, 2 * inner, nullptr, 0};
  if (multiply_adapted(*layer.up, adapters, layer.adapted[2], rows, both)) return kOutOfMemory;
  share_rows(rows.count, inner * 4, [&](int64_t row) {
    const float* const gates = buffers.both + row * 2 * inner;
    kernels->gate(layer.gate, Gating{gates, 0, gates + inner, 0, buffers.gated + row * inner, 0, 1, inner});
  });
  return kOk;
}

Status run_mixer(const Layer& layer, const Work& work, int64_t tokens, float* out) {
  const int64_t width = layer.into->in, inner = layer.down->in;
  const Buffers buffers(layer, tokens, work.adapters);
  if (!buffers.normed) return kOutOfMemory;
  normalize_rows(layer.mixer_norm, out, tokens, width, buffers.normed);
  const Output gated{buffers.gated, inner, nullptr, 0}, result{out, width, out, width};
  const Rows normed{buffers.normed, width, tokens};
  const bool has_adapters = work.adapters && layer.adapted[2] >= 0;
  if (has_adapters ? multiply_both(layer, work.adapters, normed, buffers) : multiply_gated(*layer.up, normed, gated, layer.gate)) {
    return kOutOfMemory;
  }
  return multiply_adapted(*layer.down, work.adapters, layer.adapted[3], Rows{buffers.gated, inner, tokens}, result);
}

}  // namespace
}  // namespace plx

using namespace plx;

// Runs `count` layers in order. hidden, out and spare are [tokens][width]; out must differ from the others, and spare is only
// written if there are several layers. All layers use the same table, which has `tokens` tokens, and the same adapters, or null.
PLX_EXPORT int32_t plx_layers(const Layer* const* layers, const Attention* const* attentions, int64_t count, const Table* table,
                              const Rope* rope, const int64_t* slots, const float* hidden, int64_t tokens, float* out,
                              float* spare, const AdapterStep* adapters) {
  const Work work{*rope, slots, adapters};
  for (int64_t i = 0; i < count && tokens > 0; ++i) {
    Attention attention = *attentions[i];
    attention.table = table;
    float* const to = (count - i) % 2 ? out : spare;
    if (run_attention(*layers[i], attention, work, Rows{hidden, layers[i]->into->in, tokens}, to)) return kOutOfMemory;
    if (run_mixer(*layers[i], work, tokens, to)) return kOutOfMemory;
    hidden = to;
  }
  return kOk;
}

// The sizes of records that callers make.
PLX_EXPORT int64_t plx_layer_bytes() { return sizeof(Layer); }
PLX_EXPORT int64_t plx_norm_bytes() { return sizeof(Norm); }
PLX_EXPORT int64_t plx_rope_bytes() { return sizeof(Rope); }
