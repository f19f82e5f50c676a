/*
 * The back end that computes on the CPU, with the functions of one instruction set on a pool of
 * threads (kernels/pool.h). Its buffers are memory of this process. Its queues do not run behind:
 * each step has run when its call returns.
 */
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "kernels/pool.h"

struct backend_cpu_options {
	const struct kernels *kernels;
	uint32_t threads; /* of each queue, the caller included: 1..LIMIT_THREADS */
	bool pin; /* as for pool_create */
	uint64_t spin_ns;
};

/* Starts no threads: each queue starts its own. -ENOMEM. */
int backend_cpu_create(
	const struct backend_cpu_options *options, struct backend **out, struct error *err);

/* A queue's threads, and the functions of the back end: for the creator of the back end, and for
 * measurements. */
struct pool *backend_cpu_pool(const struct queue *q);
const struct kernels *backend_cpu_kernels(const struct backend *backend);
