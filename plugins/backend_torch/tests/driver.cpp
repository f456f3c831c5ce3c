// Runs every kernel this processor has on buffers of exactly the size they need, for sanitizers to watch. Given a file, writes
// the results there, the same inputs on every machine: for each a line (instruction set, what, count), then the float32.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "operations.h"

using namespace plx;

struct Norm {  // the records of layer.cpp
  const float* weight;
  float eps, offset;
};

struct Layer {
  const Weight *into, *back, *up, *down;
  Norm attention_norm, mixer_norm, query_norm, key_norm;
  int32_t gate, adapted[4], unused;
};

struct Rope {
  const float *cos, *sin;
  int64_t half;
};

namespace plx {
struct Adapter {  // the records of adapters.cpp
  const LowRank* parts;
  const int32_t* begins;
};

struct AdapterRows {
  const Adapter* adapter;
  const int32_t* places;
  int64_t count;
};
}  // namespace plx

extern "C" {
int64_t plx_adapter_bytes();
int64_t plx_adapter_rows_bytes();
int64_t plx_norm_bytes();
int64_t plx_layer_bytes();
int64_t plx_rope_bytes();
const char* plx_list_isas(int32_t);
int32_t plx_use_isa(const char*);
void plx_set_threads(int32_t);
int32_t plx_multiply(const Weight*, const float*, int64_t, int64_t, float*, const float*, int64_t);
int32_t plx_multiply_gated(const Weight*, const float*, int64_t, int64_t, float*, int32_t);
int64_t plx_gather(const Weight*, const int64_t*, int64_t, float*);
void plx_normalize(const float*, int64_t, float*, const float*, float, float, int64_t, int64_t, int64_t, float*);
void plx_rotate(float*, int64_t, const float*, const float*, int64_t, int64_t, int64_t, int64_t);
void plx_gate(int32_t, const float*, int64_t, const float*, int64_t, int64_t, int64_t, float*);
void plx_find_largest(const float*, int64_t, int64_t, int64_t*, float*);
int32_t plx_draw(const Draw*, int64_t, const float*, int64_t, int64_t*);
void plx_forbid(const int64_t*, const uint8_t* const*, int64_t, int64_t, float*);
int32_t plx_attend(const Attention*);
int32_t plx_layers(const Layer* const*, const Attention* const*, int64_t, const Table*, const Rope*, const int64_t*, const float*,
                   int64_t, float*, float*, const AdapterStep*);
float plx_read(const float*, int64_t);
void plx_store(const float*, int64_t, const int64_t*, int64_t, int64_t, int64_t, int32_t, void*, uint16_t*);
}

static uint32_t state = 1;
static float draw() { return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f; }

static std::vector<float> numbers(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& each : out) each = draw();
  return out;
}

static int failures = 0;
static void expect(bool right, const char* what) {
  if (!right) failures += std::printf("wrong: %s\n", what) > 0;
}

static bool finite(const std::vector<float>& values) {
  for (float each : values) {
    if (!std::isfinite(each)) return false;
  }
  return true;
}

static std::FILE* record = nullptr;
static const char* isa = nullptr;  // in use

// Expects finite results, and records them.
__attribute__((format(printf, 2, 3))) static void keep(const std::vector<float>& values, const char* format, ...) {
  char what[80];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  expect(finite(values), what);
  if (!record) return;
  std::fprintf(record, "%s,%s,%zu\n", isa, what, values.size());
  std::fwrite(values.data(), sizeof(float), values.size(), record);
}

static const char* name(int32_t kind, bool narrow) {
  static const char* const names[] = {"float32", "bfloat16", "int8", "int4", "int8_low"};
  if (narrow) return kind == kInt8 ? "narrow int8" : "narrow bfloat16";
  return names[kind];
}

// The bytes of a weight: random codes, and scales that are half precision numbers of ordinary size.
static std::vector<uint16_t> make_panels(const Weight& weight) {
  std::vector<uint16_t> data(static_cast<size_t>(panel_bytes(weight) * divide_up(weight.out, kPanel) / 2));
  if (weight.kind == kFloat32) {
    const auto values = numbers(static_cast<int64_t>(data.size() / 2));
    memcpy(data.data(), values.data(), data.size() * 2);
  } else {
    for (auto& each : data) each = static_cast<uint16_t>(0x2000 + (state = state * 1664525u + 1013904223u) % 0x1a00);
  }
  return data;
}

struct Matrix {  // a weight of random numbers, with a bias
  std::vector<uint16_t> data;
  std::vector<float> bias;
  Weight weight;

  Matrix(int32_t kind, int64_t out, int64_t in, bool narrow = false) : weight{kind, narrow, in, out, nullptr, nullptr} {
    data = make_panels(weight);
    bias = numbers(out);
    weight.data = data.data();
    weight.bias = bias.data();
  }
};

// Expects that rows have the same results beside fewer others.
static void expect_same_rows(const Weight& weight, const std::vector<float>& x, const std::vector<float>& residual, const std::vector<float>& result) {
  for (int64_t rows = 1; rows <= 13; ++rows) {
    std::vector<float> some(static_cast<size_t>(rows * weight.out));
    plx_multiply(&weight, x.data(), weight.in, rows, some.data(), residual.data(), weight.out);
    expect(!memcmp(some.data(), result.data(), some.size() * sizeof(float)), "rows beside others");
  }
}

static void try_products(int32_t kind, int64_t out, int64_t in, bool narrow = false) {
  const Matrix matrix(kind, out, in, narrow);
  const Weight& weight = matrix.weight;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 97}) {
    const auto x = numbers(rows * in), residual = numbers(rows * out);
    std::vector<float> result(static_cast<size_t>(rows * out));
    expect(!plx_multiply(&weight, x.data(), in, rows, result.data(), residual.data(), out), "product");
    keep(result, "product %s %dx%d rows %d", name(kind, narrow), int(out), int(in), int(rows));
    if (rows > 13) expect_same_rows(weight, x, residual, result);
    if (out % 32) continue;
    result.resize(static_cast<size_t>(rows * out / 2));
    expect(!plx_multiply_gated(&weight, x.data(), in, rows, result.data(), rows % 2 ? kSilu : kGelu), "gated product");
    keep(result, "gated product %s %dx%d rows %d", name(kind, narrow), int(out), int(in), int(rows));
  }
  const std::vector<int64_t> ids{out - 1, 0};
  std::vector<float> rows(static_cast<size_t>(2 * in));
  plx_gather(&weight, ids.data(), 2, rows.data());
  keep(rows, "gather %s %dx%d", name(kind, narrow), int(out), int(in));
}

struct Step {  // rows of 1, 40, 0 and 1 tokens, in pages of 16 that nothing else is in
  static constexpr int64_t kTokens = 42;
  std::vector<int32_t> starts{1, 30, 31, 500}, lengths{1, 40, 0, 1}, pages, offsets;
  std::vector<int64_t> slots;  // of the tokens
  Table table;

  Step() {
    for (size_t row = 0; row < starts.size(); ++row) {
      const int64_t first = static_cast<int64_t>(pages.size());
      offsets.push_back(static_cast<int32_t>(first));
      for (int64_t i = 0; i < divide_up(starts[row] + lengths[row], 16); ++i) pages.push_back(static_cast<int32_t>(pages.size()));
      for (int64_t i = 0; i < lengths[row]; ++i) slots.push_back(first * 16 + starts[row] + i);
    }
    table = {pages.data(), offsets.data(), starts.data(), lengths.data(), 4, 16};
  }

  int64_t count_slots() const { return static_cast<int64_t>(pages.size()) * 16; }
};

struct Cache {  // keys and values for the slots of a step
  std::vector<char> data[2];
  std::vector<uint16_t> scales[2];
  int32_t kind;

  Cache(const Step& step, int32_t as, int64_t heads, int64_t dim) : kind(as) {
    const int64_t width = heads * dim;
    std::vector<int64_t> places;
    for (int64_t slot = 0; slot < step.count_slots(); ++slot) places.push_back(slot);
    for (int i = 0; i < 2; ++i) {
      const auto rows = numbers(step.count_slots() * width);
      data[i].resize(rows.size() * (kind == kFloat32 ? 4 : kind == kBfloat16 ? 2 : 1));
      scales[i].resize(kind == kInt8 ? rows.size() / static_cast<size_t>(dim) : 0);
      plx_store(rows.data(), width, places.data(), step.count_slots(), heads, dim, kind, data[i].data(), scales[i].data());
    }
  }
};

static void try_attention(int32_t kind, bool narrow, int64_t kv_heads, int64_t shared, int64_t dim, int64_t window, float size = 1) {
  const Step step;
  Cache cache(step, kind, kv_heads, dim);
  const int64_t heads = kv_heads * shared;
  auto query = numbers(Step::kTokens * heads * dim);
  for (float& each : query) each *= size;
  const auto sinks = numbers(heads);
  std::vector<float> out(query.size());
  const Attention attention{query.data(), heads * dim, out.data(), cache.data[0].data(), cache.data[1].data(),
                            cache.scales[0].data(), cache.scales[1].data(), &step.table, window ? sinks.data() : nullptr,
                            heads, kv_heads, dim, window, 0.3f, window ? 20.0f : 0.0f, kind, narrow};
  expect(!plx_attend(&attention), "attention");
  if (size == 1) return keep(out, "attention %s %dx%dx%d window %d", name(kind, narrow), int(kv_heads), int(shared), int(dim), int(window));
  expect(finite(out), "attention of queries of any size");
}

struct Adapters {  // of the four weights of a layer, one adapter of rank 3 and one of rank 9, the second in two parts
  std::vector<std::vector<uint16_t>> data;
  std::vector<LowRank> parts[2];
  std::vector<int32_t> begins[2], places[2];
  Adapter adapters[2];
  AdapterRows groups[2];
  AdapterStep step{groups, 2};

  Adapters(int32_t kind, const std::vector<const Weight*>& weights, int64_t tokens) {
    for (int i = 0; i < 2; ++i) {
      for (const Weight* weight : weights) {
        begins[i].push_back(static_cast<int32_t>(parts[i].size()));
        for (int64_t part = 0; part <= i; ++part) add(i, kind, 3 + 6 * i, weight->in, weight->out / (1 + i), part);
      }
      begins[i].push_back(static_cast<int32_t>(parts[i].size()));
      for (int32_t row = i; row < tokens; row += i ? 5 : 2) places[i].push_back(i ? row / 2 * 2 + 1 : row);
      adapters[i] = {parts[i].data(), begins[i].data()};
      groups[i] = {&adapters[i], places[i].data(), static_cast<int64_t>(places[i].size())};
    }
  }

 private:
  void add(int i, int32_t kind, int64_t rank, int64_t in, int64_t out, int64_t part) {
    for (const int64_t height : {rank, divide_up(out, kPanel) * kPanel}) {  // the numbers of a panel of as many inputs
      data.push_back(make_panels(Weight{kind, 0, height == rank ? in : rank, divide_up(height, kPanel) * kPanel, nullptr, nullptr}));
    }
    parts[i].push_back({data[data.size() - 2].data(), data.back().data(), rank, in, out, part * out, 0.5f, kind});
  }
};

static void try_layers(int32_t kind, int64_t count) {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kWidth = 40, kInner = 48;
  const Step step;
  const auto norm = numbers(kWidth), head_norm = numbers(kDim), hidden = numbers(Step::kTokens * kWidth);
  const auto cos = numbers(Step::kTokens * kDim / 2), sin = numbers(Step::kTokens * kDim / 2);
  const Matrix into(kind, (kHeads + 2 * kKvHeads) * kDim, kWidth, true), back(kind, kWidth, kHeads * kDim, true);
  const Matrix up(kind, 2 * kInner, kWidth, true), down(kind, kWidth, kInner, true);
  const Norm outer{norm.data(), 1e-5f, 0.5f}, inner{head_norm.data(), 1e-5f, 0.0f}, none{nullptr, 0, 0};
  std::vector<Layer> layers;
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<Attention> attentions;
  for (int64_t i = 0; i < count; ++i) {
    const Norm& each = i % 2 ? inner : none;
    const int32_t first = i == 0 ? 0 : -4;
    layers.push_back({&into.weight, &back.weight, &up.weight, &down.weight, outer, outer, each, each, kSilu,
                      {first, first + 1, first + 2, first + 3}, 0});
    caches.push_back(std::make_unique<Cache>(step, i % 2 ? kFloat32 : kBfloat16, kKvHeads, kDim));
    Cache& cache = *caches.back();
    attentions.push_back({nullptr, 0, nullptr, cache.data[0].data(), cache.data[1].data(), nullptr, nullptr, nullptr, nullptr,
                          kHeads, kKvHeads, kDim, 0, 0.25f, 0.0f, cache.kind, 0});
  }
  std::vector<const Layer*> layer_list;
  std::vector<const Attention*> attention_list;
  for (size_t i = 0; i < layers.size(); ++i) layer_list.push_back(&layers[i]), attention_list.push_back(&attentions[i]);
  const Rope rope{cos.data(), sin.data(), kDim / 2};
  const Adapters adapters(kind == kBfloat16 ? kBfloat16 : kFloat32, {&into.weight, &back.weight, &up.weight, &down.weight}, Step::kTokens);
  for (const AdapterStep* added : {static_cast<const AdapterStep*>(nullptr), &adapters.step}) {
    std::vector<float> out(hidden.size()), spare(hidden.size());
    const int32_t failed = plx_layers(layer_list.data(), attention_list.data(), count, &step.table, &rope, step.slots.data(),
                                      hidden.data(), Step::kTokens, out.data(), spare.data(), added);
    expect(!failed, "layers");
    keep(out, "layers %s %d%s", name(kind, kind == kBfloat16), int(count), added ? " adapted" : "");
  }
}

static void try_parts(int64_t dim) {
  auto x = numbers(6 * dim), residual = numbers(6 * dim);
  const auto weight = numbers(dim), angles = numbers(2 * (dim / 2));
  std::vector<float> out(x.size());
  plx_normalize(x.data(), 3 * dim, residual.data(), weight.data(), 1.0f, 1e-5f, 2, 3, dim, out.data());
  keep(out, "normalisation %d", int(dim));
  plx_rotate(x.data(), 3 * dim, angles.data(), angles.data(), 2, 3, dim, dim / 2);
  keep(x, "rotation %d", int(dim));
  int64_t places[6];
  plx_find_largest(residual.data(), 6, dim, places, out.data());
  expect(places[0] < dim && out[0] >= residual[0], "largest");
  plx_gate(kSilu, x.data(), dim, residual.data(), dim, 6, dim, out.data());
  keep(out, "gate %d", int(dim));
}

static void try_draws(int64_t count) {
  auto logits = numbers(3 * count);
  const std::vector<uint8_t> mask(static_cast<size_t>(divide_up(count, 8)), 0x5b);
  const int64_t rows[] = {2, 0};
  const uint8_t* const masks[] = {mask.data(), mask.data()};
  plx_forbid(rows, masks, 2, count, logits.data());
  const std::vector<Draw> draws{{0, 0, 1.0, 1.0, 0.0, 7, 0}, {1, 0, 1e-3, 0.9, 0.0, 8, 0},  {1, 0, 1e3, 0.9, 0.0, 8, 0},
                                {2, 2, 0.7, 0.5, 0.1, 9, 0}, {1, 40, 1.0, 1.0, 0.0, 9, 0}, {1, 0, 1.0, 1.0, 0.3, 9, 0}};
  int64_t tokens[6];
  std::vector<float> drawn;
  for (float size : {1.0f, 8.0f, 3e38f}) {
    auto sized = logits;
    for (float& each : sized) each *= size;
    for (double temperature : {0.1, 1.0, size * 1.0, 1e39}) {
      auto at = draws;
      for (Draw& each : at) each.temperature *= temperature;
      expect(!plx_draw(at.data(), 6, sized.data(), count, tokens), "draws");
      for (int64_t token : tokens) expect(token >= 0 && token < count, "a token"), drawn.push_back(static_cast<float>(token));
    }
  }
  keep(drawn, "draws %d", int(count));
}

static void try_everything() {
  for (int32_t kind : {kFloat32, kBfloat16, kInt8, kInt4, kInt8Low}) {
    try_products(kind, 1, 1);
    try_products(kind, 37, 45);
    try_products(kind, 96, 64);
    for (int64_t count : {1, 2, 3}) try_layers(kind, count);
  }
  try_products(kBfloat16, 37, 45, true);
  try_products(kBfloat16, 96, 64, true);
  try_products(kInt8, 40, 700);
  try_products(kInt4, 40, 700);
  try_products(kInt8Low, 40, 700);
  try_products(kBfloat16, 40, 4202, true);
  try_products(kFloat32, 20, 4100);
  try_products(kFloat32, 2050, 333);
  constexpr struct {
    int32_t kind;
    bool narrow;
  } kCaches[] = {{kFloat32, false}, {kBfloat16, false}, {kBfloat16, true}, {kInt8, false}, {kInt8, true}};
  for (const auto& cache : kCaches) {
    try_attention(cache.kind, cache.narrow, 2, 3, 64, 0);
    try_attention(cache.kind, cache.narrow, 1, 32, 8, 20);
    try_attention(cache.kind, cache.narrow, 2, 4, 40, 0);
    try_attention(cache.kind, cache.narrow, 3, 1, 256, 1);
    for (float size : {1e-40f, 300.0f}) try_attention(cache.kind, cache.narrow, 1, 1, 64, 0, size);
  }
  for (int64_t dim : {2, 40, 63}) try_parts(dim);
  for (int64_t count : {1, 16, 63, 1003}) try_draws(count);
  const auto some = numbers(1 << 15);
  expect(plx_read(some.data(), 1 << 15) > 0, "reading");
}

int main(int count, char** arguments) {
  if (count > 1) record = std::fopen(arguments[1], "wb");
  expect(plx_norm_bytes() == sizeof(Norm) && plx_layer_bytes() == sizeof(Layer) && plx_rope_bytes() == sizeof(Rope), "records");
  expect(plx_adapter_bytes() == sizeof(Adapter) && plx_adapter_rows_bytes() == sizeof(AdapterRows), "records of adapters");
  plx_set_threads(3);
  for (int32_t i = 0; (isa = plx_list_isas(i)) != nullptr; ++i) {
    expect(plx_use_isa(isa), isa);
    state = 1;
    try_everything();
  }
  if (record) expect(!std::fclose(record), "record");
  return failures ? 1 : 0;
}
