// The kernels that one thread runs, compiled for each instruction set; dispatch.cpp chooses among them.
#pragma once

#include <cstdint>

namespace plx {

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

enum Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3, kInt8Low = 4 };
enum Gate : int32_t { kNone = 0, kSilu = 1, kGelu = 2 };

constexpr int64_t kFloatBytes = 4, kHalfBytes = 2;  // a float32; a float16 or bfloat16
constexpr int64_t kCacheLine = 64;                  // bytes; scratch memory is aligned to it

// A weight [out, in] is stored in panels of kPanel outputs, the last one padded with zeros. The layout of a panel:
//   float32:  steps of one input: float32 [kPanel]
//   bfloat16: steps of two inputs: bfloat16 [kPanel][2], an odd `in` padded with zeros
//   int8:     blocks of kGroup inputs: float16 scale[kPanel], then for each pair of inputs int8 [kPanel][2]
//   int8_low: the same, with float16 low[kPanel] after the scales
//   int4:     blocks of kGroup inputs: float16 scale[kPanel], float16 low[kPanel], then for each kLineOutputs outputs kLines
//             lines of codes. Byte kQuad * o + t of line j has the codes of output o of these: of input kLineInputs * j + t
//             in its lower four bits, and of input kLineInputs * j + kQuad + t in its upper four bits
constexpr int64_t kPanel = 16;      // outputs of a panel
constexpr int64_t kPanelGroup = 4;  // the most panels of a call of `multiply`
constexpr int64_t kGroup = 32;      // inputs of a block, which share a scale

constexpr int64_t kStepBytes = kPanel * kFloatBytes;   // of a float32 or bfloat16 panel: one or two inputs
constexpr int64_t kScaleBytes = kPanel * kHalfBytes;   // of the scales, or the offsets, of a block
constexpr int64_t kPairBytes = kPanel * 2;             // of two inputs of an int8 block
constexpr int64_t kQuad = 4;                           // consecutive inputs of an int4 line
constexpr int64_t kLineOutputs = 8;                    // outputs of an int4 line
constexpr int64_t kLineInputs = 2 * kQuad;             // inputs of an int4 line
constexpr int64_t kLineBytes = kQuad * kLineOutputs;   // of an int4 line
constexpr int64_t kLines = kGroup / kLineInputs;       // lines with the same outputs in an int4 block

constexpr int64_t kInt8Codes = kScaleBytes;            // where the codes of an int8 block begin
constexpr int64_t kInt4Codes = 2 * kScaleBytes;        // where the codes of an int4 block begin
constexpr int64_t kInt8Block = kInt8Codes + kPanel * kGroup;      // bytes of a block
constexpr int64_t kInt8LowBlock = kScaleBytes + kInt8Block;       // bytes of a block
constexpr int64_t kInt4Block = kInt4Codes + kPanel * kGroup / 2;  // bytes of a block

struct Weight {
  int32_t kind;
  int32_t narrow;  // 1: activations may be rounded to bfloat16 for products with a bfloat16 weight
  int64_t in, out;
  const void* data;
  const float* bias;  // [out] or null
};

static inline int64_t panel_bytes(const Weight& weight) {
  const int64_t groups = divide_up(weight.in, kGroup);
  switch (weight.kind) {
    case kFloat32: return weight.in * kStepBytes;
    case kBfloat16: return divide_up(weight.in, 2) * kStepBytes;
    case kInt8: return groups * kInt8Block;
    case kInt8Low: return groups * kInt8LowBlock;
    default: return groups * kInt4Block;
  }
}

struct Rows {  // rows of float32, with a stride
  const float* x;
  int64_t stride, count;
};

// The activations of a product in the form that its kernel reads, [rows] with a stride in bytes: float32 unchanged; bfloat16,
// padded with a zero to an even number; or, for codes, rounded per group of inputs to int16 or, for int4, int8 [groups * kGroup],
// with `scales` [rows][groups] and, for weights with offsets, `sums` [rows][groups] of the rounded activations.
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

// The matrices of a LoRA adapter for some columns of a product, float32 or bfloat16: it adds scale * b(a(x)).
struct LowRank {
  const void* a;  // [rank][in]
  const void* b;  // panels of kPanel outputs, the last one padded with zeros: [rank][kPanel] each
  int64_t rank, in, out;
  int64_t column;  // the first of its `out` columns
  float scale;
  int32_t kind;
};

struct PanelOutput {  // a panel of the weight, and the output whose columns take its products
  int64_t panel;
  Output output;
};

struct PanelOutputs {
  const PanelOutput* list;
  int64_t count;  // at most kPanelGroup
  int64_t next;   // the first panel of the probable next call, to prefetch
};

// The page tables of a step: row r has lengths[r] queries at positions starts[r] .., in row order; the key of position p of
// row r is in slot pages[offsets[r] + p / page_size] * page_size + p % page_size.
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
  uint16_t* key_scales;  // of int8: bfloat16 [slots][kv_heads], the factor from codes to numbers; else null
  uint16_t* value_scales;
  const Table* table;
  const float* sinks;  // [heads] or null
  int64_t heads, kv_heads, dim;
  int64_t window;  // 0: none
  float scale;
  float cap;  // 0: none
  int32_t kind;    // of keys and values: kFloat32, kBfloat16 or kInt8
  int32_t narrow;  // 1: queries and weights may be rounded to bfloat16 for products with bfloat16 or int8 keys and values
};

// Some rows of numbers to gate by others: [rows][count] each, with strides.
struct Gating {
  const float* gates;
  int64_t gate_stride;
  const float* values;
  int64_t value_stride;
  float* out;
  int64_t out_stride;
  int64_t rows, count;
};

struct Draw {  // of a token from a row of logits; see `parallax_core.api.Sampling`
  int64_t row;
  int64_t top_k;  // 0: all
  double temperature, top_p, min_p;
  uint32_t key, unused;  // see `parallax_core.api.draw_key`
};

constexpr int64_t kQueryBlock = 96;  // the most queries of a task per key head: tokens times the heads that share keys
constexpr int64_t kFewQueries = 6;   // up to this many queries read keys in place; for more, keys are packed into panels
constexpr int64_t kFewKeys = 32;     // keys that few queries attend to at once
constexpr int64_t kManyKeys = 64;    // keys that many queries attend to at once

// A task of an attention: some queries of one row, the heads that share some key heads, and a range of positions of keys.
// A task has several key heads only if it has few queries.
struct AttentionTask {
  int64_t row, kv_head, kv_heads;
  int64_t token;     // the first query, counted over all rows
  int64_t position;  // its position in its row
  int64_t tokens;
  int64_t begin, end;  // keys
  float* partial;  // null, or the output for (largest score, sum, values[dim]) of each query instead of the result, ordered by
                   // token, key head, and the heads that share it
};

struct Kernels {
  const char* name;
  // The bytes that `round_input` writes for a row of activations, without scales; 0: the product reads activations unchanged.
  int64_t (*input_bytes)(const Weight&);
  void (*round_input)(const Weight&, const float* x, const Input&, int64_t row);
  // Computes rows begin .. end - 1 of the outputs of some panels.
  void (*multiply)(const Weight&, const Input&, const PanelOutputs&, int64_t begin, int64_t end);
  // Adds a part of an adapter to the rows of an output at rows.count places; `small` has room for `rank` numbers for each.
  void (*adapt)(const LowRank&, const int32_t* places, const Rows& rows, const Output&, float* small);
  // Writes row `id` of a weight, in float32.
  void (*gather)(const Weight&, int64_t id, float* out);
  // `scratch` has attend_bytes(attention) bytes, enough for any task of it, aligned to kCacheLine.
  int64_t (*attend_bytes)(const Attention&);
  void (*attend)(const Attention&, const AttentionTask&, char* scratch);
  // Joins the partial results of one query and head; overwrites the first of them.
  void (*merge)(const Attention&, float* const* partials, int64_t count, int64_t head, float* out);
  void (*normalize)(const float* x, float* residual, const float* weight, float offset, float eps, int64_t dim, float* out);
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  void (*gate)(int32_t gate, const Gating&);
  void (*narrow)(const float* x, int64_t count, uint16_t* out);  // float32 to bfloat16
  // Rounds numbers to codes -127 .. 127, and returns their scale, a bfloat16: NaN if a number is not finite.
  uint16_t (*quantize)(const float* x, int64_t count, int8_t* codes);
  // Returns the index of the largest number, the first of equal ones, and writes the number; NaN if any number is NaN.
  int64_t (*find_largest)(const float* x, int64_t count, float* most);
  // Draws among the numbers that are at least `border`; `likeliest` is the place of the largest, which is finite.
  int64_t (*draw_any)(const Draw&, const float* x, int64_t count, int64_t likeliest, float border);
  // Returns the sum of exp((x[i] - most) / temperature), about as precise as float32.
  double (*weigh_all)(const float* x, int64_t count, float most, double temperature);
  // Writes the places of the numbers that are at least `border`, in order, and returns their number.
  int64_t (*collect_from)(const float* x, int64_t count, float border, int32_t* places);
  // Writes minus infinity where a bit is 0, the lowest bit of each byte first.
  void (*forbid)(const uint8_t* allowed, int64_t count, float* x);
  float (*read)(const float* x, int64_t count);  // adds the numbers, to measure the bandwidth of memory
};

extern const Kernels* kernels;  // those in use

}  // namespace plx
