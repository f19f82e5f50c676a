/*
 * Hints that wait, bounded: one per expert, the best score first. Obsolete ones (their time has passed) are dropped when
 * met. Used by the transfer worker alone.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct hint {
	uint32_t layer, expert;
	float score;
	uint64_t needed_by_ns; /* 0 = no limit */
};

struct hints {
	uint32_t n, max, n_experts;
	uint64_t dropped; /* for want of room, or too late */
	struct hint *heap; /* [max] by falling score */
	uint32_t *place; /* [n_layers][n_experts] place in heap + 1; 0 = none */
};

int hints_init(struct hints *hints, uint32_t n_layers, uint32_t n_experts, uint32_t max,
	struct error *err);
void hints_exit(struct hints *hints);

/* A second hint for an expert keeps the higher score and the later time. */
void hints_add(struct hints *hints, const struct hint *hint);
void hints_remove(struct hints *hints, uint32_t layer, uint32_t expert);
/* Takes the best that is not obsolete at now_ns. */
bool hints_take(struct hints *hints, uint64_t now_ns, struct hint *out);
