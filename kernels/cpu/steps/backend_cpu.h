/*
 * The back end that computes on the CPU: the kernels of one instruction set on a pool of threads (kernels/pool.h). Its buffers
 * are memory of this process, and its queues run a step before they return from it.
 */
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/simd.h"
#include "kernels/pool.h"

struct backend_cpu_options {
	const struct kernels *kernels;
	uint32_t threads; /* of each queue, the caller counted: 1..LIMIT_THREADS */
	bool pin; /* as pool_create */
	uint64_t spin_ns;
};

/* Starts no threads: a queue starts its own, for the thread that makes it. -ENOMEM. */
int backend_cpu_create(
	const struct backend_cpu_options *options, struct backend **out, struct error *err);

/* For who makes the back end, and for measurements of its parts: the threads of a queue. */
struct pool *backend_cpu_pool(const struct queue *q);
const struct kernels *backend_cpu_kernels(const struct backend *backend);
