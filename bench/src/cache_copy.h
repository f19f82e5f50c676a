/*
 * `outrider-bench cache copy`: how fast experts come into a device's slots, or its emulation's, as the
 * expert-cache copies them: packed into memory that the device can fetch from, copied by a queue, each
 * with its flag behind it; by how many are queued before one is waited for.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { CACHE_COPY_BATCHES = 16, CACHE_COPY_ROUNDS = 99 };

struct cache_copy_options {
	const char *model, *backend; /* "simt" or "cuda" */
	uint32_t layer; /* UINT32_MAX: the first with experts */
	uint32_t batches[CACHE_COPY_BATCHES], n_batches; /* experts of a batch */
	uint32_t rounds;
	bool json;
};

/* Measures and prints. */
int cache_copy(const struct cache_copy_options *options, struct error *err);
