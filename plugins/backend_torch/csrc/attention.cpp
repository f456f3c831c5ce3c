// Attention cut into pieces, and the storing of keys and values.
#include <cstdlib>
#include <cstring>

#include "operations.h"
#include "pool.h"

namespace plx {
namespace {

constexpr int64_t kMostQueries = 32;   // of a span, as in isa/attention.cpp
constexpr int64_t kSplitKeys = 256;    // the fewest keys that are worth a span of their own
constexpr int64_t kMostSplits = 16;    // of a row
constexpr int64_t kAlign = 32;         // spans begin where blocks of keys do

struct Plan {
  int64_t tokens;    // of a span
  int64_t spans = 0;
  int64_t merges = 0;
};

// How the queries `first` .. of a row are cut.
struct Piece {
  int64_t tokens, begin, end, splits, keys;
};

Piece cut_piece(const Attention& a, const Plan& plan, int64_t row, int64_t first) {
  Piece piece;
  piece.tokens = least(plan.tokens, a.table->lengths[row] - first);
  const int64_t position = a.table->starts[row] + first;
  piece.begin = a.window && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
  piece.end = position + piece.tokens;
  // By what the row has, not by what else there is to do: so a row gives the same whatever else is in the step.
  const int64_t all = piece.end - piece.begin, fair = divide_up(all, kMostSplits);
  const bool whole = count_threads() == 1 || a.table->lengths[row] > plan.tokens;
  piece.keys = whole ? all : fair > kSplitKeys ? fair : kSplitKeys;
  piece.splits = divide_up(all, piece.keys);
  piece.keys = divide_up(divide_up(all, piece.splits), kAlign) * kAlign;
  piece.splits = divide_up(all, piece.keys);
  return piece;
}

Plan make_plan(const Attention& a) {
  const int64_t shared = a.heads / a.kv_heads;
  int64_t longest = 0;
  for (int64_t row = 0; row < a.table->rows; ++row) longest = a.table->lengths[row] > longest ? a.table->lengths[row] : longest;
  Plan plan;
  plan.tokens = longest > 1 ? kMostQueries / shared > 0 ? kMostQueries / shared : 1 : 1;
  for (int64_t row = 0; row < a.table->rows; ++row) {
    for (int64_t first = 0; first < a.table->lengths[row]; first += plan.tokens) {
      const Piece piece = cut_piece(a, plan, row, first);
      plan.spans += piece.splits * a.kv_heads;
      if (piece.splits > 1) plan.merges += a.kv_heads;
    }
  }
  return plan;
}

struct Merge {
  int64_t span, splits;  // the first of the spans, and how many they are
};

struct Lists {
  Span* spans;
  Merge* merges;
  float* partials;
};

void fill_lists(const Attention& a, const Plan& plan, const Lists& lists) {
  const int64_t partial = kMostQueries * (a.dim + 2);
  Span* span = lists.spans;
  Merge* merge = lists.merges;
  int64_t token = 0;
  for (int64_t row = 0; row < a.table->rows; ++row) {
    for (int64_t first = 0; first < a.table->lengths[row]; first += plan.tokens) {
      const Piece piece = cut_piece(a, plan, row, first);
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        if (piece.splits > 1) *merge++ = {span - lists.spans, piece.splits};
        for (int64_t split = 0; split < piece.splits; ++split, ++span) {
          const int64_t begin = piece.begin + split * piece.keys;
          float* const left = piece.splits > 1 ? lists.partials + (span - lists.spans) * partial : nullptr;
          *span = {row, head, token, a.table->starts[row] + first, piece.tokens, begin, least(piece.end, begin + piece.keys), left};
        }
      }
      token += piece.tokens;
    }
  }
}

void merge_spans(const Attention& a, const Lists& lists, const Merge& merge) {
  const Span& first = lists.spans[merge.span];
  const int64_t shared = a.heads / a.kv_heads;
  const float** const partials = static_cast<const float**>(alloca(static_cast<size_t>(merge.splits) * sizeof(float*)));
  for (int64_t q = 0; q < first.tokens * shared; ++q) {
    for (int64_t i = 0; i < merge.splits; ++i) partials[i] = lists.spans[merge.span + i].partial + q * (a.dim + 2);
    const int64_t head = first.kv_head * shared + q % shared;
    kernels->merge(a, partials, merge.splits, head, a.out + ((first.token + q / shared) * a.heads + head) * a.dim);
  }
}

}  // namespace

void attend_rows(const Attention& a) {
  const Plan plan = make_plan(a);
  if (plan.spans == 0) return;
  const int64_t partials = plan.merges ? plan.spans * kMostQueries * (a.dim + 2) * 4 : 0;
  const int64_t bytes = plan.spans * static_cast<int64_t>(sizeof(Span)) + plan.merges * static_cast<int64_t>(sizeof(Merge));
  char* const room = static_cast<char*>(malloc(static_cast<size_t>(bytes + partials)));
  if (!room) abort();
  Lists lists;
  lists.spans = reinterpret_cast<Span*>(room);
  lists.merges = reinterpret_cast<Merge*>(lists.spans + plan.spans);
  lists.partials = reinterpret_cast<float*>(lists.merges + plan.merges);
  fill_lists(a, plan, lists);
  share(plan.spans, [&](int64_t i) { kernels->attend(a, lists.spans[i]); });
  share(plan.merges, [&](int64_t i) { merge_spans(a, lists, lists.merges[i]); });
  free(room);
}

void store_row(const float* row, int64_t slot, int64_t width, int32_t kind, void* pool) {
  if (kind == kFloat32) {
    memcpy(static_cast<float*>(pool) + slot * width, row, static_cast<size_t>(width) * 4);
  } else {
    kernels->narrow(row, width, static_cast<uint16_t*>(pool) + slot * width);
  }
}

}  // namespace plx

using namespace plx;

PLX_EXPORT void plx_attend(const Attention* attention) { attend_rows(*attention); }

// Writes float32 rows [tokens][width], with a stride between them, into slots of a pool [slots][width].
PLX_EXPORT void plx_store(const float* rows, int64_t stride, const int64_t* slots, int64_t tokens, int64_t width, int32_t kind,
                          void* pool) {
  for (int64_t token = 0; token < tokens; ++token) store_row(rows + token * stride, slots[token], width, kind, pool);
}
