/*
 * Low-rank additions of gated adapters, for the steps that have them (kernels/adapt.cuh): an array
 * that kernels see, filled one by one and then launched.
 */
#pragma once

#include "kernels/gpu/steps/steps.h"

#include "kernels/gpu/kernels/adapt.cuh"

struct additions {
	struct addition *of;
	uint32_t n;
	uint32_t rank, outputs, rows; /* the greatest of all */
	size_t between; /* floats of the queue's memory for them that are in use */
};

/* For at most `most` additions. What earlier ones had between their products is gone then. */
struct additions additions_begin(struct gpu_queue *q, uint32_t most);
/* Adds w for n rows; null if there is no w. The caller sets x, y, and which rows they are. */
struct addition *additions_add(
	struct gpu_queue *q, struct additions *to, const struct low_rank *w, uint32_t n);
/* Queues them. */
void additions_run(struct gpu_queue *q, const struct additions *what);
