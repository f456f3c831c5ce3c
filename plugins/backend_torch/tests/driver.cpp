// Runs every kernel on buffers of exactly the size they need, for sanitizers to watch.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "operations.h"

using namespace plx;

extern "C" {
void plx_use_plain(int32_t);
void plx_set_threads(int32_t);
void plx_multiply(const Weight*, const float*, int64_t, int64_t, float*, const float*, int64_t);
void plx_multiply_gated(const Weight*, const float*, int64_t, int64_t, float*, int32_t);
int64_t plx_gather(const Weight*, const int64_t*, int64_t, float*);
void plx_normalize(const float*, int64_t, float*, const float*, float, float, int64_t, int64_t, int64_t, float*);
void plx_rotate(float*, int64_t, const float*, const float*, int64_t, int64_t, int64_t, int64_t);
void plx_gate(int32_t, const float*, int64_t, const float*, int64_t, int64_t, int64_t, float*);
void plx_find_largest(const float*, int64_t, int64_t, int64_t*, float*);
void plx_attend(const Attention*);
void plx_store(const float*, int64_t, const int64_t*, int64_t, int64_t, int32_t, void*);
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
  if (!right) failures += std::printf("not finite: %s\n", what) > 0;
}

static bool finite(const std::vector<float>& values) {
  for (float each : values) {
    if (!std::isfinite(each)) return false;
  }
  return true;
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

static void try_products(int32_t kind, int64_t out, int64_t in) {
  Weight weight{kind, 0, in, out, nullptr, nullptr};
  const auto data = make_panels(weight);
  const auto bias = numbers(out);
  weight.data = data.data();
  weight.bias = bias.data();
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 97}) {
    const auto x = numbers(rows * in), residual = numbers(rows * out);
    std::vector<float> result(static_cast<size_t>(rows * out));
    plx_multiply(&weight, x.data(), in, rows, result.data(), residual.data(), out);
    expect(finite(result), "product");
    if (out % 32) continue;
    result.resize(static_cast<size_t>(rows * out / 2));
    plx_multiply_gated(&weight, x.data(), in, rows, result.data(), rows % 2 ? kSilu : kGelu);
    expect(finite(result), "gated product");
  }
  const std::vector<int64_t> ids{out - 1, 0};
  std::vector<float> rows(static_cast<size_t>(2 * in));
  plx_gather(&weight, ids.data(), 2, rows.data());
  expect(finite(rows), "gather");
}

static void try_attention(int32_t kind, int64_t kv_heads, int64_t shared, int64_t dim, int64_t window) {
  const std::vector<int32_t> starts{0, 30, 31, 500}, lengths{1, 40, 0, 1};
  std::vector<int32_t> pages, offsets;
  for (size_t row = 0; row < starts.size(); ++row) {
    offsets.push_back(static_cast<int32_t>(pages.size()));
    for (int64_t i = 0; i < divide_up(starts[row] + lengths[row], 16); ++i) pages.push_back(static_cast<int32_t>(pages.size()));
  }
  const int64_t tokens = 42, slots = static_cast<int64_t>(pages.size()) * 16, width = kv_heads * dim;
  auto keys = numbers(slots * width), values = numbers(slots * width);
  std::vector<uint16_t> narrow[2] = {std::vector<uint16_t>(keys.size()), std::vector<uint16_t>(keys.size())};
  std::vector<int64_t> places;
  for (int64_t slot = 0; slot < slots; ++slot) places.push_back(slot);
  plx_store(keys.data(), width, places.data(), slots, width, kBfloat16, narrow[0].data());
  plx_store(values.data(), width, places.data(), slots, width, kBfloat16, narrow[1].data());
  const auto query = numbers(tokens * kv_heads * shared * dim), sinks = numbers(kv_heads * shared);
  std::vector<float> out(query.size());
  const Table table{pages.data(), offsets.data(), starts.data(), lengths.data(), 4, 16};
  const bool wide = kind == kFloat32;
  const Attention attention{query.data(), kv_heads * shared * dim, out.data(), wide ? static_cast<void*>(keys.data()) : narrow[0].data(),
                            wide ? static_cast<void*>(values.data()) : narrow[1].data(), &table, window ? sinks.data() : nullptr,
                            kv_heads * shared, kv_heads, dim, window, 0.3f, window ? 20.0f : 0.0f, kind, 0};
  plx_attend(&attention);
  expect(finite(out), "attention");
}

static void try_parts(int64_t dim) {
  auto x = numbers(6 * dim), residual = numbers(6 * dim);
  const auto weight = numbers(dim), angles = numbers(2 * (dim / 2));
  std::vector<float> out(x.size());
  plx_normalize(x.data(), 3 * dim, residual.data(), weight.data(), 1.0f, 1e-5f, 2, 3, dim, out.data());
  expect(finite(out), "normalisation");
  plx_rotate(x.data(), 3 * dim, angles.data(), angles.data(), 2, 3, dim, dim / 2);
  int64_t places[6];
  plx_find_largest(residual.data(), 6, dim, places, out.data());
  expect(places[0] < dim && out[0] >= residual[0], "largest");
  plx_gate(kSilu, x.data(), dim, residual.data(), dim, 6, dim, out.data());
  expect(finite(out), "gate");
}

int main() {
  plx_set_threads(3);
  for (int32_t plain : {0, 1}) {
    plx_use_plain(plain);
    for (int32_t kind : {kFloat32, kBfloat16, kInt8, kInt4}) {
      try_products(kind, 1, 1);
      try_products(kind, 37, 45);
      try_products(kind, 96, 64);
    }
    try_products(kFloat32, 20, 4100);
    try_products(kFloat32, 2050, 333);
    for (int32_t kind : {kFloat32, kBfloat16}) {
      try_attention(kind, 2, 3, 64, 0);
      try_attention(kind, 1, 32, 8, 20);
      try_attention(kind, 3, 1, 256, 1);
    }
    for (int64_t dim : {2, 40, 63}) try_parts(dim);
  }
  return failures ? 1 : 0;
}
