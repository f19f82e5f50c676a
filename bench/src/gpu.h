/*
 * What the benchmarks of a GPU, or of its emulation, share: it is opened by name, waited for, and
 * named in every result, which says whether it was the emulation.
 */
#pragma once

#include "kernels/backend.h"

#include <jansson.h>

/* --backend: one of cpu, simt and cuda; without `cpu` one of the last two. -EINVAL names what it
 * takes. */
int gpu_check(const char *name, bool cpu, struct error *err);
/* Opens "simt" or "cuda" (kernels/gpu/backend.h). The caller destroys it. */
int gpu_open(const char *name, struct backend **out, struct error *err);
bool gpu_emulated(const struct backend *backend);
/* Waits for everything that was queued. A failure is that of the device. */
int gpu_finish(struct queue *q, struct error *err);

/* Begins a result: backend, device, driver, emulated, rounds. A new reference. */
json_t *gpu_json(const struct backend *backend, uint32_t rounds);
/* The same as the first lines of a text. */
void gpu_say(const struct backend *backend, uint32_t rounds);
/* A number of a result. */
double gpu_number(const json_t *object, const char *key);

/* A benchmark whose state is a zeroed struct with `options` set: what it does, in this order. stop
 * is called in any case, and frees what start has made. */
struct gpu_bench {
	int (*start)(void *bench, struct error *err);
	int (*measure)(void *bench, struct error *err);
	json_t *(*report)(void *bench); /* a new reference */
	void (*print)(const void *bench, const json_t *result); /* as text */
	void (*stop)(void *bench);
};
/* Runs it, and prints its result as text or as JSON. */
int gpu_run(const struct gpu_bench *of, void *bench, bool json, struct error *err);
