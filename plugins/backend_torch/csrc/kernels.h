// What one thread computes, once for each instruction set; dispatch.cpp chooses among them.
#pragma once

#include <cstdint>

namespace plx {

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

enum Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };
enum Gate : int32_t { kNone = 0, kSilu = 1, kGelu = 2 };

constexpr int64_t kPanel = 16;      // outputs that lie together
constexpr int64_t kPanelGroup = 4;  // panels of a call of `multiply`, at most
constexpr int64_t kGroup = 32;      // inputs that share a scale
constexpr int64_t kInt8Block = 32 + 512;       // bytes of a group of a panel: 16 scales, 512 codes
constexpr int64_t kInt4Block = 32 + 32 + 256;  // 16 scales, 16 offsets, 512 codes of half a byte

// A weight [out, in] in panels of 16 outputs, the last one filled up with zeros. Inside a panel lie, for
//   float32:  [in][16]
//   bfloat16: [in / 2][16][2], an odd `in` rounded up with zeros
//   int8:     for each group of 32 inputs, float16 scale[16], then int8 [16 pairs of inputs][16][2]
//   int4:     for each group, float16 scale[16], float16 low[16], then 8 times 32 bytes; byte 4 o + t of the one numbered
//             4 h + j holds the codes of output 8 h + o: of input 8 j + t in its lower half, of 8 j + 4 + t in its upper
struct Weight {
  int32_t kind;
  int32_t narrow;  // 1: activations may be rounded to bfloat16 to multiply them with a weight in bfloat16
  int64_t in, out;
  const void* data;
  const float* bias;  // [out] or null
};

static inline int64_t panel_bytes(const Weight& weight) {
  const int64_t groups = divide_up(weight.in, kGroup);
  switch (weight.kind) {
    case kFloat32: return weight.in * 64;
    case kBfloat16: return divide_up(weight.in, 2) * 64;
    case kInt8: return groups * kInt8Block;
    default: return groups * kInt4Block;
  }
}

struct Rows {  // float32, with a stride between them
  const float* x;
  int64_t stride, count;
};

// The activations of a product in the form its kernel reads, [rows] with a stride in bytes: float32 as they are given;
// bfloat16, `in` rounded up to an even number with zeros; for int8 and int4, rounded per group of 32 inputs to int16 or int8
// [groups * 32], with `scales` [rows][groups] and, for int4, `sums` [rows][groups] of the rounded activations.
struct Input {
  const void* x;
  int64_t stride;
  float* scales;
  float* sums;
};

struct Output {
  float* out;
  int64_t stride;
  const float* residual;  // or null; may be `out`
  int64_t residual_stride;
};

struct PanelOutput {  // a panel of the weight, and where its products go: to its own columns of the output
  int64_t panel;
  Output output;
};

struct PanelOutputs {
  const PanelOutput* list;
  int64_t count;  // at most kPanelGroup
  int64_t next;   // the first panel that will probably be asked for next
};

// Where the tokens of a step belong: row r has lengths[r] queries at positions starts[r] .., in row order; the key of position
// p of row r lies in slot pages[offsets[r] + p / page_size] * page_size + p % page_size.
struct Table {
  const int32_t* pages;
  const int32_t* offsets;
  const int32_t* starts;
  const int32_t* lengths;
  int64_t rows, page_size;
};

struct Attention {
  const float* query;  // [tokens][heads][dim], with a stride between tokens
  int64_t query_stride;
  float* out;  // [tokens][heads][dim]
  void* keys;  // [slots][kv_heads][dim]
  void* values;
  const Table* table;
  const float* sinks;  // [heads] or null
  int64_t heads, kv_heads, dim;
  int64_t window;  // 0: none
  float scale;
  float cap;  // 0: none
  int32_t kind;  // of keys and values: kFloat32 or kBfloat16
  int32_t unused;
};

constexpr int64_t kQueryBlock = 96;  // queries of a task for each key head, at most: tokens times the heads that share keys
constexpr int64_t kFewQueries = 6;   // are attended for where keys lie; for more it is worth bringing these into panels
constexpr int64_t kKeyBlock = 32;    // keys that are attended to at once

// A task of an attention: some queries of one row, the heads that share some key heads, and a range of positions of keys.
// There are several key heads only where queries are few.
struct AttentionTask {
  int64_t row, kv_head, kv_heads;
  int64_t token;     // the first query, counted over all rows
  int64_t position;  // its position in its row
  int64_t tokens;
  int64_t begin, end;  // keys
  float* partial;  // null, or where to leave (largest score, sum, values[dim]) of each query instead of the result: for each key
                   // head of each token those of the heads that share it
};

struct Kernels {
  const char* name;
  // What `round_input` writes for a row of activations: bytes of the row and numbers of its scales. No bytes: nothing, the
  // product reads activations as they are given.
  int64_t (*input_bytes)(const Weight&);
  void (*round_input)(const Weight&, const float* x, const Input&, int64_t row);
  // Rows begin .. end - 1 of the outputs of some panels.
  void (*multiply)(const Weight&, const Input&, const PanelOutputs&, int64_t begin, int64_t end);
  // Row `id` of a weight, in float32.
  void (*gather)(const Weight&, int64_t id, float* out);
  // `scratch` holds attend_bytes(attention) for any of its tasks, aligned to 64.
  int64_t (*attend_bytes)(const Attention&);
  void (*attend)(const Attention&, const AttentionTask&, char* scratch);
  // Puts the partial results of one query and head together; the first of them is overwritten.
  void (*merge)(const Attention&, float* const* partials, int64_t count, int64_t head, float* out);
  void (*normalize)(const float* x, float* residual, const float* weight, float offset, float eps, int64_t dim, float* out);
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  void (*gate)(int32_t gate, const float* gates, const float* values, int64_t count, float* out);
  void (*narrow)(const float* x, int64_t count, uint16_t* out);  // float32 to bfloat16
  // The place of the largest, the first of equal ones, and what it is: no number if one of them is none.
  int64_t (*find_largest)(const float* x, int64_t count, float* most);
  float (*read)(const float* x, int64_t count);  // sums them up; what memory gives at best
};

extern const Kernels* kernels;  // for this processor

}  // namespace plx
