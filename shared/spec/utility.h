/*
 * MoE-SpAc's expert utility (arXiv 2603.09983, section 3.2, algorithm 1): a small integer for each
 * expert, which follows how many tokens of a verification chose it, with inertia.
 *
 *   D = f_t - f_{t-1}
 *   D >= up: s <- min(K, s + 1); else -D >= down: s <- max(0, s - 1)
 *                                             (equation 6: inertial transition; K <= gamma)
 *   D > 0: up <- floor((1 - lambda) up + lambda D)        (adaptive boundaries)
 *   D < 0: down <- floor((1 - lambda) down + lambda |D|)
 *
 * K (the utility bound, called K_u here because K is the length of drafts elsewhere), lambda and
 * the first boundaries, floor(gamma / 2), are the paper's. Where it leaves a gap:
 *
 * - A boundary of 0 would raise every score at D = 0 in every step, whether used or not. gamma = 1
 *   starts there, and the floor takes every boundary there that is not fed. So a boundary is at
 *   least 1.
 * - f of steps of different lengths cannot be compared, so the caller scales it to one length.
 * - Tokens that are rejected later count, because their experts were needed all the same.
 * - lambda = 1/10, in integers, so that floor sees no rounding errors.
 */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

enum { UTILITY_BOUND = 4 }; /* K_u: appendix C's experiments, K = 4 */

struct utility {
	uint32_t n_ids;
	uint32_t bound; /* K_u for this gamma: UTILITY_BOUND or less */
	struct utility_state {
		uint16_t frequency, up, down; /* f_{t-1} and the boundaries */
		uint8_t score; /* 0..UTILITY_BOUND */
	} * of; /* [n_ids] */
};

/* gamma: drafted tokens of a step, at least 1. */
int utility_init(struct utility *utility, uint32_t n_ids, uint32_t gamma, struct error *err);
void utility_exit(struct utility *utility);
/* Starts again as at the first step, with another gamma. */
void utility_begin(struct utility *utility, uint32_t gamma);
/* Changes steps from `from` to `to` drafted tokens, both at least 1. Frequencies are scaled to the
 * new length. Boundaries begin again at floor(to / 2), from which they adapt within a few steps. A
 * score above the new bound becomes the bound. */
void utility_follow(struct utility *utility, uint32_t from, uint32_t to);
/* Scales a frequency among `from` tokens to one among `to` tokens, rounded to the nearest integer.
 */
uint64_t utility_scale(uint32_t frequency, uint32_t from, uint32_t to);
/* One step of one expert; returns the new score. */
uint8_t utility_step(struct utility *utility, uint32_t id, uint32_t frequency);
