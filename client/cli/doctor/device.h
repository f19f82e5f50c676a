/*
 * What of a model fits into a device's memory beside the KV cache and the passes, by the rules of the
 * verifier (device_fit.h) and of the expert-cache (device/share.h).
 */
#pragma once

#include "client/cli/doctor/facts.h"
#include "services/verifier/state/device_fit.h"

#include <stdbool.h>

struct device_plan {
	char name[96]; /* of the device */
	uint64_t bytes, free; /* of its memory */
	uint64_t limit; /* of it, for the whole service */
	bool limited; /* by device_memory */
	/* What the verifier takes: the weights that every token uses, buffers of the passes, the KV
	 * cache, and spare slots for experts. */
	uint64_t weights, passes, kv, spare;
	/* Experts, those that fit, and the fewest with which a service runs; dense: 0. */
	uint32_t experts, fit, least;
	uint64_t fit_bytes;
	struct device_extent extent; /* the settings that were planned with */
	bool runs; /* with them */
	bool less_runs; /* if not: with those in `less` */
	struct device_extent less;
};

/* The settings of the service that is planned; the others are the defaults. */
struct device_wants {
	const char *device; /* as in services/knobs */
	const char *memory; /* device_memory, likewise */
	int64_t sessions, context; /* so many sessions of at most so many tokens */
};

/* Opens the device that is wanted, looks, and closes it. 1: *out is filled. 0: the CPU computes, by the
 * setting or, with auto, because no device can be used. -errno: there is no such device, with the
 * reason. */
int device_plan_make(const struct device_wants *wants, const struct facts *facts,
	struct device_plan *out, struct error *err);
