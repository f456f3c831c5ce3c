// Splits attention into tasks, and stores keys and values.
#include <atomic>
#include <cstring>

#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

thread_local Scratch lists_scratch, task_scratch;

constexpr int64_t kSplitKeys = 256;  // the fewest keys that are worth a separate task
constexpr int64_t kMostSplits = 16;  // the most splits of the keys of a block of queries
constexpr int64_t kTasksPerThread = 4;  // the fewest tasks per thread, if there are enough heads

// A block of queries of one row, with the keys that they see and the splits of these among tasks.
struct QueryBlock {
  int64_t row, token, position, tokens;  // as in AttentionTask
  int64_t begin, end, splits, keys;      // keys: the number of keys of a split
};

// Splits depend only on the row, not on the other work of the step, so that a row gives the same result in any batch. They
// begin at blocks of keys.
void split_keys(const Attention& a, bool is_whole, QueryBlock& block) {
  block.begin = a.window ? most(0, block.position - a.window + 1) : 0;
  block.end = block.position + block.tokens;
  const int64_t all = block.end - block.begin;
  const int64_t keys = is_whole ? all : most(kSplitKeys, divide_up(all, kMostSplits));
  block.keys = divide_up(divide_up(all, divide_up(all, keys)), kFewKeys) * kFewKeys;
  block.splits = divide_up(all, block.keys);
}

// Calls body(block) for each block of queries of all rows.
template <class Body>
void each_block(const Attention& a, Body&& body) {
  const int64_t shared = a.heads / a.kv_heads, tokens = most(1, kQueryBlock / shared);
  QueryBlock block{};
  for (block.row = 0; block.row < a.table->rows; ++block.row) {
    const int64_t length = a.table->lengths[block.row];
    const bool is_whole = length > tokens;
    for (int64_t first = 0; first < length; first += block.tokens) {
      block.position = a.table->starts[block.row] + first;
      block.tokens = least(tokens, length - first);
      split_keys(a, is_whole, block);
      body(block);
      block.token += block.tokens;
    }
  }
}

struct Merge {  // joins the partial results of some queries
  int64_t task, splits;  // the first task, and the number of tasks
};

struct TaskList {
  int64_t heads = 1;  // key heads of a task with few queries
  int64_t tasks = 0, merges = 0, partials = 0;  // how many there are; partials: floats in all partial results
  AttentionTask* task = nullptr;
  Merge* merge = nullptr;
  float* partial = nullptr;

  int64_t find_heads(const Attention& a, const QueryBlock& block) const {
    return block.tokens * (a.heads / a.kv_heads) <= kFewQueries ? heads : 1;
  }
};

void count_tasks(const Attention& a, TaskList& list) {
  list.tasks = list.merges = list.partials = 0;
  each_block(a, [&](const QueryBlock& block) {
    const int64_t groups = a.kv_heads / list.find_heads(a, block);
    list.tasks += block.splits * groups;
    if (block.splits == 1) return;
    list.merges += groups;
    list.partials += block.splits * block.tokens * a.heads * (a.dim + 2);
  });
}

void fill_tasks(const Attention& a, const TaskList& list) {
  AttentionTask* task = list.task;
  Merge* merge = list.merge;
  float* partial = list.partial;
  each_block(a, [&](const QueryBlock& block) {
    const int64_t heads = list.find_heads(a, block), numbers = block.tokens * heads * (a.heads / a.kv_heads) * (a.dim + 2);
    for (int64_t head = 0; head < a.kv_heads; head += heads) {
      if (block.splits > 1) *merge++ = {task - list.task, block.splits};
      for (int64_t begin = block.begin; begin < block.end; begin += block.keys) {
        const int64_t end = least(block.end, begin + block.keys);
        *task++ = {block.row, head, heads, block.token, block.position, block.tokens, begin, end, block.splits > 1 ? partial : nullptr};
        if (block.splits > 1) partial += numbers;
      }
    }
  });
}

// Tasks have all key heads if there are enough tasks anyway: adjacent keys are then prefetched together.
bool make_tasks(const Attention& a, TaskList& list) {
  list.heads = a.kv_heads;
  count_tasks(a, list);
  if (list.tasks < kTasksPerThread * count_threads()) {
    list.heads = 1;
    count_tasks(a, list);
  }
  const int64_t tasks = list.tasks * static_cast<int64_t>(sizeof(AttentionTask));
  const int64_t merges = list.merges * static_cast<int64_t>(sizeof(Merge));
  char* const room = lists_scratch.take(tasks + merges + list.partials * kFloatBytes);
  if (!room) return false;
  list.task = reinterpret_cast<AttentionTask*>(room);
  list.merge = reinterpret_cast<Merge*>(room + tasks);
  list.partial = reinterpret_cast<float*>(room + tasks + merges);
  fill_tasks(a, list);
  return true;
}

void merge_partials(const Attention& a, const TaskList& list, const Merge& merge) {
  const AttentionTask* const tasks = list.task + merge.task;
  const int64_t heads = tasks[0].kv_heads * (a.heads / a.kv_heads), first = tasks[0].kv_head * (a.heads / a.kv_heads);
  float* partials[kMostSplits];
  for (int64_t q = 0; q < tasks[0].tokens * heads; ++q) {
    for (int64_t i = 0; i < merge.splits; ++i) partials[i] = tasks[i].partial + q * (a.dim + 2);
    const int64_t head = first + q % heads;
    kernels->merge(a, partials, merge.splits, head, a.out + ((tasks[0].token + q / heads) * a.heads + head) * a.dim);
  }
}

}  // namespace

Status attend_rows(const Attention& a) {
  TaskList list;
  if (!make_tasks(a, list)) return kOutOfMemory;
  const int64_t bytes = kernels->attend_bytes(a);
  std::atomic<bool> is_short{false};
  share(list.tasks, [&](int64_t i) {
    char* const room = task_scratch.take(bytes);
    if (!room) return is_short.store(true);
    kernels->attend(a, list.task[list.tasks - 1 - i], room);  // in reverse: the last tasks see the most keys, and take longest
  });
  if (is_short) return kOutOfMemory;
  share(list.merges, [&](int64_t i) { merge_partials(a, list, list.merge[i]); });
  return kOk;
}

void store_row(const float* row, int64_t slot, const RowPool& pool) {
  const int64_t width = pool.heads * pool.dim;
  if (pool.kind == kFloat32) {
    memcpy(static_cast<float*>(pool.data) + slot * width, row, static_cast<size_t>(width * kFloatBytes));
  } else if (pool.kind == kBfloat16) {
    kernels->narrow(row, width, static_cast<uint16_t*>(pool.data) + slot * width);
  } else {
    int8_t* const codes = static_cast<int8_t*>(pool.data) + slot * width;
    uint16_t* const scales = pool.scales + slot * pool.heads;
    for (int64_t head = 0; head < pool.heads; ++head) {
      scales[head] = kernels->quantize(row + head * pool.dim, pool.dim, codes + head * pool.dim);
    }
  }
}

}  // namespace plx

using namespace plx;

PLX_EXPORT int32_t plx_attend(const Attention* attention) { return attend_rows(*attention); }

// Writes float32 rows [tokens][heads][dim], with a stride between them, into slots of a pool; `scales` only for int8.
PLX_EXPORT void plx_store(const float* rows, int64_t stride, const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim,
                          int32_t kind, void* data, uint16_t* scales) {
  const RowPool pool{data, scales, kind, heads, dim};
  for (int64_t token = 0; token < tokens; ++token) store_row(rows + token * stride, slots[token], pool);
}
