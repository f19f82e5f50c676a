/*
 * The least time a forward pass can take on this machine: what its matrices and its keys and values weigh, what has to be
 * computed with them, and how long that takes at the peaks measured beside it (peaks.h). Norms, biases and the states of
 * recurrent layers are left out: they are nothing beside the matrices, and a floor may be low.
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
	double bytes; /* of everything below, each byte once */
	double expert_bytes; /* of the distinct routed experts */
	double kv_bytes;
	double int8_ops; /* of products with quantised weights */
	double bytes_s; /* bytes at the read bandwidth */
	double kv_s, expert_s; /* kv_bytes and expert_bytes at the read bandwidth */
	double roofline_s; /* sum over matrices of max(bytes / bandwidth, operations / peak of the type) */
	uint32_t experts; /* distinct ones, summed over the layers */
};

void floor_of(const struct model *model, const struct kv_layout *kv, const struct peaks *peaks,
	const struct floor_pass *pass, struct floor *out);
