// The kernels of one instruction set; parts.cpp makes their table.
#pragma once

#include "../kernels.h"

namespace plx::PLX_ISA {

int64_t input_bytes(const Weight&);
void round_input(const Weight&, const float* x, const Input&, int64_t row);
void multiply(const Weight&, const Input&, const PanelOutputs&, int64_t begin, int64_t end);
void adapt(const LowRank&, const int32_t* places, const Rows&, const Output&, float* small);
void gather(const Weight&, int64_t id, float* out);
int64_t attend_bytes(const Attention&);
void attend(const Attention&, const AttentionTask&, char* scratch);
void merge(const Attention&, float* const* partials, int64_t count, int64_t head, float* out);
void normalize(const float* x, float* residual, const float* weight, float offset, float eps, int64_t dim, float* out);
void rotate(float* x, const float* cos, const float* sin, int64_t half);
void gate(int32_t gate, const Gating&);
void narrow(const float* x, int64_t count, uint16_t* out);
uint16_t quantize(const float* x, int64_t count, int8_t* codes);
int64_t find_largest(const float* x, int64_t count, float* most);
int64_t draw_any(const Draw&, const float* x, int64_t count, int64_t likeliest, float border);
double weigh_all(const float* x, int64_t count, float most, double temperature);
int64_t collect_from(const float* x, int64_t count, float border, int32_t* places);
void forbid(const uint8_t* allowed, int64_t count, float* x);
float read(const float* x, int64_t count);

extern const Kernels table;

}  // namespace plx::PLX_ISA
