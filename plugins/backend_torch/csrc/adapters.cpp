// Adds the products of LoRA adapters, those of several adapters in one call.
#include "operations.h"
#include "scratch.h"

namespace plx {
namespace {

thread_local Scratch between;

}  // namespace

struct AdapterJob {  // some rows of an input, and the matrices of one adapter for some columns of the output
  Weight a, b;       // [rank, in] and [columns, rank], float32 or bfloat16, whose activations are not rounded
  int64_t row, rows;
  int64_t column;
  float scale;
  int32_t unused;
};

}  // namespace plx

using namespace plx;

namespace {

void multiply_alone(const Weight& weight, const Rows& rows, const Output& output) {
  const Input input{rows.x, rows.stride * kFloatBytes, nullptr, nullptr};
  const int64_t panels = divide_up(weight.out, kPanel);
  for (int64_t panel = 0; panel < panels; panel += kPanelGroup) {
    PanelOutput list[kPanelGroup];
    for (int64_t i = 0; i < kPanelGroup; ++i) list[i] = {panel + i, output};
    const PanelOutputs outputs{list, least(kPanelGroup, panels - panel), panel + kPanelGroup};
    kernels->multiply(weight, input, outputs, 0, rows.count);
  }
}

}  // namespace

PLX_EXPORT int64_t plx_adapter_job_bytes() { return sizeof(AdapterJob); }

// Adds scale * b(a(x)) of each job to its part of `out`; no two jobs may have a part in common.
PLX_EXPORT int32_t plx_adapt(const AdapterJob* jobs, int64_t count, const float* x, int64_t stride, float* out, int64_t out_stride) {
  bool lacks_memory = false;
  share(count, [&](int64_t index) {
    const AdapterJob& job = jobs[index];
    const int64_t rank = job.a.out;
    float* const small = reinterpret_cast<float*>(between.take(job.rows * rank * kFloatBytes));
    if (!small) {
      __atomic_store_n(&lacks_memory, true, __ATOMIC_RELAXED);
      return;
    }
    multiply_alone(job.a, Rows{x + job.row * stride, stride, job.rows}, Output{small, rank, nullptr, 0});
    for (int64_t i = 0; i < job.rows * rank; ++i) small[i] *= job.scale;
    float* const place = out + job.row * out_stride + job.column;
    multiply_alone(job.b, Rows{small, rank, job.rows}, Output{place, out_stride, place, out_stride});
  });
  return lacks_memory ? kOutOfMemory : kOk;
}
