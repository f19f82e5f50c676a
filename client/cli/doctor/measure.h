/*
 * What `outrider doctor` measures, each within a bounded time: memory with each number of threads, and the disk through the
 * reader that the expert-cache has, from the model file itself. One thread, which drives its own pools.
 */
#pragma once

#include "client/cli/doctor/facts.h"
#include "shared/base/cpus.h"

#include <stdbool.h>

enum { MEASURE_COUNTS = 16 };

struct measured {
	struct peaks peaks; /* of all threads */
	double hand_over_us;
	size_t read_bytes; /* of the memory that was read */
	uint32_t n_counts;
	struct {
		uint32_t threads;
		double gb_s;
	} counts[MEASURE_COUNTS]; /* ascending; the last with all threads */
	/* The disk; all 0 without a model, or when its file is too small to measure. */
	struct measured_disk {
		char link[32]; /* how it is read: "io_uring O_DIRECT" */
		bool direct; /* past the page cache: else what the cache has is not read from the disk */
		unsigned depth;
		size_t piece_bytes;
		double random_gb_s; /* experts at random places (of a dense model, 1 MiB), as many at once as keep it busy */
		double layer_gb_s; /* the experts of one token and layer at a time, no others meanwhile; 0: dense */
		double sequential_gb_s;
		double cached_gb_s; /* from the page cache; 0: the file is not in it */
	} disk;
};

/* model_bytes: of the model's weights, 0: none. Where they are few, as much memory is read: it lies in the CPU's caches then, as
 * they will. */
int measure_memory(
	const struct cpus *cpus, uint64_t model_bytes, struct measured *out, struct error *err);
/* Past the page cache where the file system allows it. cached: the page cache has all of the file, and is measured too. */
int measure_disk(
	const struct facts *facts, bool cached, struct measured_disk *out, struct error *err);
