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
  int32_t gate, unused;
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

  Buffers(const Layer& layer, int64_t tokens) {
    const int64_t widths[] = {layer.into->in, layer.into->out, layer.back->in, layer.down->in};
    float* room = reinterpret_cast<float*>(scratch.take(tokens * (widths[0] + widths[1] + widths[2] + widths[3]) * kFloatBytes));
    float** const buffers[] = {&normed, &mixed, &attended, &gated};
    for (int i = 0; i < 4; ++i) {
      *buffers[i] = room;
      if (room) room += tokens * widths[i];
    }
  }
};

Status run_attention(const Layer& layer, Attention a, const Rope& rope, const int64_t* slots, const Rows& hidden, float* out) {
  const int64_t tokens = hidden.count, width = layer.into->in;
  const Buffers buffers(layer, tokens);
  if (!buffers.normed) return kOutOfMemory;
  normalize_rows(layer.attention_norm, hidden.x, tokens, width, buffers.normed);
  const Output mixed{buffers.mixed, layer.into->out, nullptr, 0};
  if (multiply_rows(*layer.into, Rows{buffers.normed, width, tokens}, mixed)) return kOutOfMemory;
  prepare_heads(layer, a, rope, slots, buffers.mixed, tokens);
  a.query = buffers.mixed;
  a.query_stride = layer.into->out;
  a.out = buffers.attended;
  if (attend_rows(a)) return kOutOfMemory;
  return multiply_rows(*layer.back, Rows{buffers.attended, layer.back->in, tokens}, Output{out, width, hidden.x, width});
}

Status run_mixer(const Layer& layer, int64_t tokens, float* out) {
  const int64_t width = layer.into->in, inner = layer.down->in;
  const Buffers buffers(layer, tokens);
  if (!buffers.normed) return kOutOfMemory;
  normalize_rows(layer.mixer_norm, out, tokens, width, buffers.normed);
  const Output gated{buffers.gated, inner, nullptr, 0};
  if (multiply_gated(*layer.up, Rows{buffers.normed, width, tokens}, gated, layer.gate)) return kOutOfMemory;
  return multiply_rows(*layer.down, Rows{buffers.gated, inner, tokens}, Output{out, width, out, width});
}

}  // namespace
}  // namespace plx

using namespace plx;

// Runs `count` layers in order. hidden, out and spare are [tokens][width]; out must differ from the others, and spare is only
// written if there are several layers. All layers use the same table, which has `tokens` tokens.
PLX_EXPORT int32_t plx_layers(const Layer* const* layers, const Attention* const* attentions, int64_t count, const Table* table,
                              const Rope* rope, const int64_t* slots, const float* hidden, int64_t tokens, float* out,
                              float* spare) {
  for (int64_t i = 0; i < count && tokens > 0; ++i) {
    Attention attention = *attentions[i];
    attention.table = table;
    float* const to = (count - i) % 2 ? out : spare;
    if (run_attention(*layers[i], attention, *rope, slots, Rows{hidden, layers[i]->into->in, tokens}, to)) return kOutOfMemory;
    if (run_mixer(*layers[i], tokens, to)) return kOutOfMemory;
    hidden = to;
  }
  return kOk;
}

// The sizes of records that callers make.
PLX_EXPORT int64_t plx_layer_bytes() { return sizeof(Layer); }
PLX_EXPORT int64_t plx_norm_bytes() { return sizeof(Norm); }
PLX_EXPORT int64_t plx_rope_bytes() { return sizeof(Rope); }
