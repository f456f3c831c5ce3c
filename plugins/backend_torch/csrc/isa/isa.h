// The functions of one kind of instructions, before they are put into its table.
#pragma once

#include "../kernels.h"

namespace plx::PLX_ISA {

void multiply(const Weight&, const Input&, const Strip* strips, int64_t count, int64_t begin, int64_t end);
void round_input(const Input&, int32_t kind, int64_t row, int64_t in);
void gather(const Weight&, int64_t id, float* out);
void attend(const Attention&, const Span&);
void merge(const Attention&, const float* const* partials, int64_t count, int64_t head, float* out);
void normalize(const float* x, float* residual, const float* weight, float offset, float eps, int64_t dim, float* out);
void rotate(float* x, const float* cos, const float* sin, int64_t half);
void gate(int32_t gate, const float* gates, const float* values, int64_t count, float* out);
void narrow(const float* x, int64_t count, uint16_t* out);
int64_t find_largest(const float* x, int64_t count, float* most);
float read(const float* x, int64_t count);

extern const Kernels table;

}  // namespace plx::PLX_ISA
