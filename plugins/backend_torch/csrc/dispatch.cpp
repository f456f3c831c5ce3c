#include <cstring>

#include "operations.h"

namespace plx {

namespace plain {
extern const Kernels table;
}

#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
#endif

namespace {

const Kernels* find_best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (able) return &avx2::table;
#endif
  return &plain::table;
}

}  // namespace

const Kernels* kernels = find_best();

}  // namespace plx

using namespace plx;

PLX_EXPORT const char* plx_isa() { return kernels->name; }

// Uses the kernels that need nothing of the processor, or the best it can run; not while others compute.
PLX_EXPORT void plx_use_plain(int32_t plain) { kernels = plain ? &plain::table : find_best(); }
