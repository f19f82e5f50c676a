/*
 * MoE-SpAc's workload balancer (section 3.3, appendix C): the threshold tau, a utility from which
 * on experts are prefetched; equations 9 to 12 are shared/spec/balance.c's. The paper balances
 * experts computed by the host against those computed by the device. In the cache no expert is
 * computed where it is stored: one that is not resident is brought over the link on demand, so the
 * link takes the role of the host:
 *
 *   T_slow(tau) = r_slow(tau) b t_io      (equation 7; r_slow: share of a step's distinct experts
 *                                          with a utility below tau)
 *   T_fast(tau) = r_fast(tau) b t_fast    (equation 8; r_fast: the rest; t_fast: time per expert)
 *   minimise |T_slow - T_fast|            (equation 9)
 *   t_io n(tau) <= max(T_slow, T_fast) + gamma t_draft / L_target
 *                                         (equation 10: prefetches hide behind the rest)
 *   n(tau) <= slots left                  (equation 11)
 *   1 <= tau <= K_u                       (equation 12)
 *
 * b, the r and n are per layer, as in the paper, and are learnt from what was used (appendix C.1:
 * "from a warm-up").
 */
#pragma once

#include "shared/spec/utility.h"

struct balancer_inputs {
	uint32_t bound; /* K_u, at most UTILITY_BOUND */
	double used[UTILITY_BOUND + 1]; /* distinct experts of a layer and step, by utility */
	double wanted[UTILITY_BOUND + 1]; /* experts that are not resident, per layer, by utility */
	/* [tau]: slots, per layer, that hold experts of a utility below tau */
	double slots_left[UTILITY_BOUND + 1];
	double load_ns; /* t_io */
	double compute_ns; /* t_fast */
	double window_ns; /* gamma t_draft / L_target: drafting time per layer of the target */
};

/* tau in 1..bound; bound when nothing is feasible (appendix C.2). */
uint32_t balancer_threshold(const struct balancer_inputs *inputs);
