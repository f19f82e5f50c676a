/* Builds the table of functions of an instruction set from the templates. Define BACKEND (its
 * suffix) and include this last. */
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/cpu.h"

#define OPS_TABLE_(backend, product, f32)                   \
	const struct kernels kernels_##backend = {          \
		.name = #backend,                           \
		.supported = kernels_##backend##_supported, \
		.quantise_q8 = op_quantise_q8,              \
		.matmul = product,                          \
		.matmul_f32 = f32,                          \
		.dequantise_row = kernels_dequantise_row,   \
		.rms_norm = op_rms_norm,                    \
		.layer_norm = op_layer_norm,                \
		.rope = op_rope,                            \
		.silu_mul = op_silu_mul,                    \
		.swiglu_oai = op_swiglu_oai,                \
		.sigmoid = op_sigmoid,                      \
		.add = op_add,                              \
		.axpy = op_axpy,                            \
		.greatest = op_greatest,                    \
		.scale_logits = op_scale_logits,            \
		.exp_sums = op_exp_sums,                    \
		.draws = op_draws,                          \
		.softmax = op_softmax,                      \
		.sigmoid_mul = op_sigmoid_mul,              \
		.conv_silu = op_conv_silu,                  \
		.l2_norm = op_l2_norm,                      \
		.delta_gates = op_delta_gates,              \
		.delta_step = op_delta_step,                \
		.attention = op_attention,                  \
		.attention_scratch = op_attention_scratch,  \
		.attention_join = op_attention_join,        \
		.attention_finish = op_attention_finish,    \
		.kv_store = op_kv_store,                    \
		.kv_store_turned = op_kv_store_turned,      \
		.kv_store_paired = op_kv_store_paired,      \
	}
#define OPS_TABLE(backend, product, f32) OPS_TABLE_(backend, product, f32)

OPS_TABLE(BACKEND, op_matmul, false);
