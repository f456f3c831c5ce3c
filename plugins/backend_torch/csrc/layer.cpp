// Whole layers in one call: attention with grouped heads, and a gated mixer, each behind a norm and added to what was before.
#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

struct Norm {
  const float* weight;  // null: there is none
  float eps, offset;
};

struct Layer {
  const Weight* into;  // queries, keys and values one below the other
  const Weight* back;
  const Weight* up;  // gate and up one below the other
  const Weight* down;
  Norm attention_norm, mixer_norm, query_norm, key_norm;
  int32_t gate, unused;
};

struct Turn {  // angles of the tokens: [tokens][half] each
  const float* cos;
  const float* sin;
  int64_t half;
};

thread_local Scratch room;

void normalize_rows(const Norm& norm, const float* x, int64_t rows, int64_t dim, float* out) {
  share_rows(rows, dim, [&](int64_t row) {
    kernels->normalize(x + row * dim, nullptr, norm.weight, norm.offset, norm.eps, dim, out + row * dim);
  });
}

void turn_heads(const Norm& norm, const Turn& turn, float* x, int64_t heads, int64_t dim, int64_t token) {
  for (int64_t head = 0; head < heads; ++head, x += dim) {
    if (norm.weight) kernels->normalize(x, nullptr, norm.weight, norm.offset, norm.eps, dim, x);
    if (turn.half) kernels->rotate(x, turn.cos + token * turn.half, turn.sin + token * turn.half, turn.half);
  }
}

// Makes queries, keys and values of what the first product gave, and stores the latter two.
void prepare_heads(const Layer& layer, const Attention& a, const Turn& turn, const int64_t* slots, float* mixed, int64_t tokens) {
  const int64_t width = layer.into->out, inner = a.kv_heads * a.dim;
  share_rows(tokens, width * 2, [&](int64_t token) {
    float* const queries = mixed + token * width;
    float* const keys = queries + a.heads * a.dim;
    turn_heads(layer.query_norm, turn, queries, a.heads, a.dim, token);
    turn_heads(layer.key_norm, turn, keys, a.kv_heads, a.dim, token);
    store_row(keys, slots[token], inner, a.kind, a.keys);
    store_row(keys + inner, slots[token], inner, a.kind, a.values);
  });
}

void run_layer(const Layer& layer, Attention a, const Turn& turn, const int64_t* slots, const Rows& hidden, float* out) {
  const int64_t tokens = hidden.count, width = layer.into->in, inner = layer.down->in;
  float* const normed = reinterpret_cast<float*>(room.take(tokens * (width + layer.into->out + layer.back->in + inner) * 4));
  float* const mixed = normed + tokens * width;
  float* const attended = mixed + tokens * layer.into->out;
  float* const gated = attended + tokens * layer.back->in;
  normalize_rows(layer.attention_norm, hidden.x, tokens, width, normed);
  multiply_rows(*layer.into, Rows{normed, width, tokens}, Output{mixed, layer.into->out, nullptr, 0});
  prepare_heads(layer, a, turn, slots, mixed, tokens);
  a.query = mixed;
  a.query_stride = layer.into->out;
  a.out = attended;
  attend_rows(a);
  multiply_rows(*layer.back, Rows{attended, layer.back->in, tokens}, Output{out, width, hidden.x, width});
  normalize_rows(layer.mixer_norm, out, tokens, width, normed);
  multiply_gated(*layer.up, Rows{normed, width, tokens}, Output{gated, inner, nullptr, 0}, layer.gate);
  multiply_rows(*layer.down, Rows{gated, inner, tokens}, Output{out, width, out, width});
}

}  // namespace
}  // namespace plx

using namespace plx;

// `count` layers, one after the other. hidden, out and spare are [tokens][width]; out is neither of the others, and spare is
// only written to where there are several layers. All layers are told of the same table, which has those tokens.
PLX_EXPORT void plx_layers(const Layer* const* layers, const Attention* const* attentions, int64_t count, const Table* table,
                           const Turn* turn, const int64_t* slots, const float* hidden, int64_t tokens, float* out,
                           float* spare) {
  for (int64_t i = 0; i < count && tokens > 0; ++i) {
    Attention attention = *attentions[i];
    attention.table = table;
    float* const to = (count - i) % 2 ? out : spare;
    run_layer(*layers[i], attention, *turn, slots, Rows{hidden, layers[i]->into->in, tokens}, to);
    hidden = to;
  }
}
