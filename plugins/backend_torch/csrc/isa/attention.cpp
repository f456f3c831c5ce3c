// Attention to keys and values in pages. Softmax is computed block by block, with a running largest score and sum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018); all queries of several tokens, and of the heads that share
// keys, use a block together (Dao et al., "FlashAttention", 2022), so that it is read once.
#include "attention.h"

#include "few.h"
#include "few_codes.h"
#include "few_pairs.h"
#include "isa.h"
#include "many.h"

namespace plx::PLX_ISA {
namespace {

void end_query(const Attention& a, float most, float total, const float* values, int64_t head, float* out) {
  float decay = 1.0f;
  if (a.sinks) {
    const float sink = a.sinks[head];
    const float reach = sink > most ? sink : most;
    decay = expf(most - reach);
    total = total * decay + expf(sink - reach);
  }
  const float scale = total == 0 ? 0.0f : decay / total;
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

// Copies the queries of one key head, scaled.
template <class Form>
void begin_head(const Attention& a, const AttentionTask& task, const State& state, int64_t kv_head) {
  const int64_t shared = a.heads / a.kv_heads;
  memset(state.query, 0, static_cast<size_t>(state.queries * state.width * kFloatBytes));
  memset(state.values, 0, static_cast<size_t>(state.queries * state.width * kFloatBytes));
  for (int64_t q = 0; q < state.queries; ++q) {
    const int64_t head = (task.kv_head + kv_head) * shared + q % shared;
    const float* const from = a.query + (task.token + q / shared) * a.query_stride + head * a.dim;
    char* const query = reinterpret_cast<char*>(state.query) + q * state.width * Form::kItem;
    Form::put_query(from, a.scale, a.dim, reinterpret_cast<float*>(query));
    state.most[q] = kNever;
    state.total[q] = 0;
  }
}

// Returns a block of keys and values in another form, in scratch memory.
using Prepare = KeyBlock (*)(const Attention&, const State&, const KeyBlock&);

// Attends to all keys of a task block by block, head by head, while the next block is prefetched. Without `prepare`, keys and
// values are read in place.
template <class Form>
void run_task(const Attention& a, const AttentionTask& task, char* scratch, Prepare prepare) {
  const State state(a, task.tokens * (a.heads / a.kv_heads), task.kv_heads, scratch);
  for (int64_t head = 0; head < task.kv_heads; ++head) begin_head<Form>(a, task, state.find_head(head), head);
  KeyBlock blocks[2];
  find_keys(a, task, task.begin, state.block, blocks[0]);
  const int64_t row = a.dim * item_bytes(a);
  for (int64_t begin = task.begin, turn = 0; begin < task.end; begin += state.block, turn ^= 1) {
    KeyBlock &block = blocks[turn], &next = blocks[turn ^ 1];
    next.count = 0;
    if (begin + state.block < task.end) find_keys(a, task, begin + state.block, state.block, next);
    Fetcher fetcher{a, next, row * task.kv_heads, task.kv_heads};
    for (int64_t head = 0; head < task.kv_heads; ++head) {
      block.offset = head * row;
      const State mine = state.find_head(head);
      if (prepare) {
        Form::attend(a, task, mine, prepare(a, state, block), fetcher);
      } else {
        Form::attend(a, task, mine, block, fetcher);
      }
    }
  }
  for (int64_t head = 0; head < task.kv_heads; ++head) {
    const State mine = state.find_head(head);
    Form::restore_order(mine);
    end_head(a, task, mine, head);
  }
}

}  // namespace

int64_t attend_bytes(const Attention& a) {
  return most(State(a, kQueryBlock, 1, nullptr).bytes, State(a, kFewQueries, a.kv_heads, nullptr).bytes);
}

void attend(const Attention& a, const AttentionTask& task, char* scratch) {
  const int64_t queries = task.tokens * (a.heads / a.kv_heads);
  const bool is_few = queries <= kFewQueries;
  if (a.kind == kInt8 && is_few) return run_task<FewCodes>(a, task, scratch, nullptr);
  const Prepare prepare = a.dim == State(a, queries, 1, nullptr).width ? nullptr : pad_rows;
#if defined(__AVX512BF16__)
  if (a.narrow && is_few && a.kind == kBfloat16) return run_task<FewPairs>(a, task, scratch, prepare);
#endif
#if defined(PLX_PAIRS)
  if (a.narrow && !is_few && a.kind != kFloat32) {
    return run_task<PairForm>(a, task, scratch, a.kind == kInt8 ? widen_rows<uint16_t> : prepare);
  }
#endif
  if (a.kind == kInt8) return run_task<FloatForm<Float32Cache>>(a, task, scratch, widen_rows<float>);
  if (a.kind == kBfloat16) {
    return is_few ? run_task<FewForm<Bfloat16Cache>>(a, task, scratch, prepare)
                  : run_task<FloatForm<Bfloat16Cache>>(a, task, scratch, prepare);
  }
  return is_few ? run_task<FewForm<Float32Cache>>(a, task, scratch, prepare)
                : run_task<FloatForm<Float32Cache>>(a, task, scratch, prepare);
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
