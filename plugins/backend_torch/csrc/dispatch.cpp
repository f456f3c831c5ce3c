// Chooses among the instruction sets for which the kernels were compiled.
#include <cstring>

#include "operations.h"

#if !defined(PLX_PLAIN_ONLY)  // a sanitizer that looks for races needs one instruction set
#if defined(__x86_64__)
#define PLX_X86
#elif defined(__aarch64__)
#define PLX_ARM
#endif
#endif

#if defined(PLX_ARM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(PLX_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace plx {

#define PLX_EACH_ISA(body) body(plain)
#if defined(PLX_X86)
#undef PLX_EACH_ISA
#define PLX_EACH_ISA(body) body(plain) body(avx2) body(avx512) body(avx512_vnni) body(avx512_bf16)
#elif defined(PLX_ARM)
#undef PLX_EACH_ISA
#define PLX_EACH_ISA(body) body(plain) body(neon) body(neon_dotprod) body(neon_i8mm) body(neon_bf16)
#endif

#define PLX_DECLARE(isa) \
  namespace isa {        \
  extern const Kernels table; \
  }
PLX_EACH_ISA(PLX_DECLARE)

namespace {

struct Isa {
  const Kernels* table;
  bool is_able;  // whether this processor has it
  bool is_fast;  // whether it may be the default
};

#if defined(PLX_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#if defined(PLX_ARM)
struct ArmFeatures {  // what a processor may have beside NEON, which all have
  bool dotprod = false, i8mm = false, bf16 = false;
};

#if defined(__linux__)
ArmFeatures find_features() {  // the bits of Linux's ABI, which older headers do not name
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {(first >> 20 & 1) != 0, (second >> 13 & 1) != 0, (second >> 14 & 1) != 0};
}
#elif defined(__APPLE__)
bool has_feature(const char* name) {
  int32_t found = 0;
  size_t bytes = sizeof found;
  return sysctlbyname(name, &found, &bytes, nullptr, 0) == 0 && found;
}

ArmFeatures find_features() {
  return {has_feature("hw.optional.arm.FEAT_DotProd"), has_feature("hw.optional.arm.FEAT_I8MM"), has_feature("hw.optional.arm.FEAT_BF16")};
}
#else
ArmFeatures find_features() { return {}; }
#endif
#endif

constexpr int kMostIsas = 8;

struct Isas {
  Isa list[kMostIsas];
  int count = 0;

  Isas() {
    add(&plain::table, true, true);
#if defined(PLX_X86)
    __builtin_cpu_init();
    const bool vnni = has_avx512() && __builtin_cpu_supports("avx512vnni");
    add(&avx2::table, has_avx2(), true);
    add(&avx512::table, has_avx512(), true);
    add(&avx512_vnni::table, vnni, true);
    // Intel's cores take two cycles for a bfloat16 product, which has twice the work of a float32 product, of which they do two
    // per cycle. AMD's cores do as many of either.
    add(&avx512_bf16::table, vnni && __builtin_cpu_supports("avx512bf16"), !__builtin_cpu_is("intel"));
#elif defined(PLX_ARM)
    const ArmFeatures has = find_features();
    add(&neon::table, true, true);
    add(&neon_dotprod::table, has.dotprod, true);
    add(&neon_i8mm::table, has.dotprod && has.i8mm, true);
    add(&neon_bf16::table, has.dotprod && has.i8mm && has.bf16, true);
#endif
  }

  const Kernels* find(const char* name) const {
    for (int i = 0; i < count; ++i) {
      if (list[i].is_able && strcmp(list[i].table->name, name) == 0) return list[i].table;
    }
    return nullptr;
  }

  const Kernels* find_best() const {
    const Kernels* best = &plain::table;
    for (int i = 0; i < count; ++i) {
      if (list[i].is_able && list[i].is_fast) best = list[i].table;
    }
    return best;
  }

 private:
  void add(const Kernels* table, bool is_able, bool is_fast) { list[count++] = {table, is_able, is_fast}; }
};

const Isas& find_isas() {
  static const Isas isas;
  return isas;
}

}  // namespace

const Kernels* kernels = find_isas().find_best();

}  // namespace plx

using namespace plx;

// Returns the name of the instruction set in use.
PLX_EXPORT const char* plx_isa() { return kernels->name; }

// Returns the name of the instruction set number `index` of this processor, the most basic first; null after the last.
PLX_EXPORT const char* plx_list_isas(int32_t index) {
  const Isas& isas = find_isas();
  for (int i = 0; i < isas.count; ++i) {
    if (isas.list[i].is_able && index-- == 0) return isas.list[i].table->name;
  }
  return nullptr;
}

// Uses the kernels of that name, or the fastest if it is null; not while other threads compute. Returns 0 if this processor
// cannot run them.
PLX_EXPORT int32_t plx_use_isa(const char* name) {
  const Kernels* const found = name ? find_isas().find(name) : find_isas().find_best();
  if (found) kernels = found;
  return found != nullptr;
}
