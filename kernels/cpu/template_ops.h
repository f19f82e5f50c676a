/* The ops table of a backend, from the templates: define BACKEND (the suffix) and include last. */
#pragma once

#include "kernels/cpu/cpu.h"

#define OPS_TABLE_(backend)                                 \
	const struct kernels kernels_##backend = {          \
		.name = #backend,                           \
		.supported = kernels_##backend##_supported, \
		.quantise_q8 = op_quantise_q8,              \
		.matmul = op_matmul,                        \
		.dequantise_row = op_dequantise_row,        \
		.rms_norm = op_rms_norm,                    \
		.rope = op_rope,                            \
		.silu_mul = op_silu_mul,                    \
		.add = op_add,                              \
		.axpy = op_axpy,                            \
		.exp_less = exp_less,                       \
		.softmax = op_softmax,                      \
		.attention = op_attention,                  \
		.attention_scratch = op_attention_scratch,  \
		.kv_store = op_kv_store,                    \
	}
#define OPS_TABLE(backend) OPS_TABLE_(backend)

OPS_TABLE(BACKEND);
