// Vectors of floats of the width of the instruction set, in the vector extensions of GCC and Clang; where these are too slow,
// there are versions for AVX2, AVX-512, NEON and everything else. All names have internal linkage, since the same source is
// compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(PLX_NEON)
#include <arm_neon.h>
#endif

#include "../kernels.h"

namespace plx::PLX_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;  // floats of a vector
#elif defined(PLX_NEON)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 8;
#endif
constexpr int kVectors = kPanel / kLanes;  // vectors of a panel
constexpr float kRounder = 12582912.0f;    // 1.5 * 2^23: adding and subtracting it rounds to the nearest integer

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef float LooseFloats __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t LooseWords __attribute__((vector_size(4 * kLanes), aligned(2), may_alias));

#define PLX_INLINE static inline __attribute__((always_inline, unused))
#define PLX_UNROLL _Pragma("GCC unroll 16")

PLX_INLINE Floats load(const float* p) { return *reinterpret_cast<const LooseFloats*>(p); }
PLX_INLINE void save(float* p, Floats v) { *reinterpret_cast<LooseFloats*>(p) = v; }
PLX_INLINE Words load_words(const void* p) { return *reinterpret_cast<const LooseWords*>(p); }
PLX_INLINE Floats as_floats(Words v) { return reinterpret_cast<Floats>(v); }
PLX_INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

PLX_INLINE float read_float(const void* p) {
  float value;
  memcpy(&value, p, 4);
  return value;
}

PLX_INLINE int32_t read_word(const void* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return word;
}

#if defined(__AVX512F__)
PLX_INLINE Floats splat(float x) { return reinterpret_cast<Floats>(_mm512_set1_ps(x)); }
PLX_INLINE Floats larger(Floats a, Floats b) {
  return reinterpret_cast<Floats>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}
PLX_INLINE Floats smaller(Floats a, Floats b) {
  return reinterpret_cast<Floats>(_mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}
#else
#if defined(PLX_NEON)
PLX_INLINE Floats splat(float x) { return vdupq_n_f32(x); }
#else
PLX_INLINE Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x}; }
#endif
PLX_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // b if a or b is NaN
PLX_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
#endif

// Adds a * b to a sum, rounded once if the instruction set allows it. In assembly, since GCC 12 otherwise copies sums between
// registers and runs out of them.
PLX_INLINE void add_product(Floats& sum, Floats a, Floats b) {
#if defined(__AVX512F__)
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#elif defined(__AVX2__)
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#elif defined(PLX_NEON)
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
#else
  sum += a * b;
#endif
}

#if defined(__AVX512VNNI__)
// Adds the products of unsigned by signed 8-bit numbers, four to each 32-bit sum.
PLX_INLINE void add_quads(__m512i& sum, __m512i a, __m512i b) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
#endif

}  // namespace
}  // namespace plx::PLX_ISA
