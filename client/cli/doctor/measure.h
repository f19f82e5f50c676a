/*
 * The measurements of `outrider doctor`, each within a bounded time: of memory with each number of
 * threads, and of the disk through the expert cache's reader, from the model file itself. One
 * thread, which drives its own pools.
 */
#pragma once

#include "client/cli/doctor/facts.h"
#include "shared/base/cpus.h"

#include <stdbool.h>

enum { MEASURE_COUNTS = 16 };

struct measured {
	struct peaks peaks; /* with all threads */
	double hand_over_us;
	size_t read_bytes; /* of the memory that was read */
	uint32_t n_counts;
	struct {
		uint32_t threads;
		double gb_s;
	} counts[MEASURE_COUNTS]; /* ascending; the last with all threads */
	/* The disk; all 0 without a model, or when its file is too small to measure. */
	struct measured_disk {
		char link[32]; /* the way of reading, such as "io_uring O_DIRECT" */
		/* it bypasses the page cache; otherwise cached parts are not read from the disk */
		bool direct;
		unsigned depth;
		size_t piece_bytes;
		/* experts at random places (for a dense model: 1 MiB each), as many at once as keep
		 * the disk busy */
		double random_gb_s;
		/* the experts of one token and layer at a time, with no other reads; 0: dense */
		double layer_gb_s;
		double sequential_gb_s;
		double cached_gb_s; /* from the page cache; 0: the file is not in it */
	} disk;
};

/* model_bytes: of the model's weights, 0: there is no model. For a small model only as much memory
 * is read, which is then in the CPU's caches, as the weights will be. */
int measure_memory(
	const struct cpus *cpus, uint64_t model_bytes, struct measured *out, struct error *err);
/* Bypasses the page cache where the file system allows it. cached: the page cache has all of the
 * file, and is measured too. */
int measure_disk(
	const struct facts *facts, bool cached, struct measured_disk *out, struct error *err);
