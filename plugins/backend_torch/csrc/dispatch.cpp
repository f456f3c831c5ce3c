#include "kernels.h"

namespace plx {

namespace plain {
extern const Kernels table;
}

#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}

static const Kernels* choose() {
  __builtin_cpu_init();
  const bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return able ? &avx2::table : &plain::table;
}
#else
static const Kernels* choose() { return &plain::table; }
#endif

const Kernels* const kernels = choose();

}  // namespace plx
