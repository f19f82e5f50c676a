/*
 * SP-MoE's cutoff layer (section 3.2): hints of the drafting stage are used for the layers below it only, so that what
 * they load arrives before the drafting ends and does not push out what the same drafting has loaded.
 */
#pragma once

#include <stdint.h>

struct cutoff_inputs {
	uint32_t n_layers;
	uint32_t
		n_slots; /* the paper's (C - M_peak) / s: experts that fit beside everything else */
	uint32_t draft_tokens; /* n_draft */
	double draft_layer_ns; /* t_comp: one layer of the draft model, which has as many, one token */
	double load_ns; /* t_io: one expert over the link */
	const double *new_experts; /* [n_layers] N_l: hinted for, not resident */
};

/*
 * The largest L in 0..n_layers with
 *   sum over l < L of N_l <= n_slots                                                                 (memory)
 *   max over l < L of ( (l + 1) t_comp + sum over l <= j < L of N_j t_io ) <= n_draft n_layers t_comp (time)
 * The hints of layer l exist once the draft model has computed it, and the link takes one expert after the other: what
 * is hinted for at layer l or later ends no sooner than that. n_layers where the times are not known (0): with
 * nothing measured yet nothing is held back.
 */
uint32_t cutoff_solve(const struct cutoff_inputs *inputs);
