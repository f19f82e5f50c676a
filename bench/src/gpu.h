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
/* Prints a result that is wanted as JSON. */
void gpu_print_json(const json_t *result);
