/*
 * The least time that a forward pass can take on this machine: the bytes of its matrices, keys and
 * values, the operations on them, and the time for both at the measured peaks (peaks.h). Norms,
 * biases and the states of recurrent layers are left out: they are small compared with the
 * matrices, and a floor may be too low.
 */
#pragma once

#include "shared/measure/peaks.h"
#include "shared/model/kv/kv.h"

/* One pass of n tokens in a chain behind `depth` committed ones, `logits` of them with logits. */
struct floor_pass {
	uint32_t n, logits, depth;
	/* [n_layers][n_experts] tokens that chose the expert; 0 in dense layers */
	const uint16_t *chosen;
};

struct floor {
	double bytes; /* of everything below; each byte counts once */
	double expert_bytes; /* of the distinct routed experts */
	double kv_bytes;
	double int8_ops; /* of products with quantised weights */
	double bytes_s; /* bytes at the read bandwidth */
	double kv_s, expert_s; /* kv_bytes and expert_bytes at the read bandwidth */
	/* sum over matrices of max(bytes / bandwidth, operations / peak of the type) #skip
	 * shared/measure/peaks.h 5 */
	double roofline_s;
	uint32_t experts; /* distinct ones, summed over the layers */
};

void floor_of(const struct model *model, const struct kv_layout *kv, const struct peaks *peaks,
	const struct floor_pass *pass, struct floor *out);
