/*
 * SP-MoE's cutoff layer (section 3.2): hints from drafting are used only for the layers below it,
 * so that what they load arrives before the drafting ends, and does not evict what the same
 * drafting has loaded.
 */
#pragma once

#include <stdint.h>

struct cutoff_inputs {
	uint32_t n_layers;
	/* the paper's (C - M_peak) / s: experts that fit in addition to everything else */
	uint32_t n_slots;
	uint32_t draft_tokens; /* n_draft */
	/* t_comp: one layer of the draft model, which counts as having as many layers, for one
	 * token */
	double draft_layer_ns;
	double load_ns; /* t_io: one expert over the link */
	/* [n_layers] N_l: experts that are hinted for and not resident */
	const double *new_experts;
};

/*
 * The largest L in 0..n_layers with
 *   sum over l < L of N_l <= n_slots                                                      (memory)
 *   max over l < L of ((l + 1) t_comp + sum over l <= j < L of N_j t_io)
 *                                                       <= n_draft n_layers t_comp        (time)
 * The hints of layer l exist once the draft model has computed that layer, and the link takes one
 * expert after the other, so loads hinted for at layer l or later end no sooner than that. n_layers
 * when the times are unknown (0): nothing is held back before anything was measured.
 */
uint32_t cutoff_solve(const struct cutoff_inputs *inputs);
