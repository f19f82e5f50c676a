/*
 * How fast large copies are, over the link between a device, or its emulation, and memory of the host
 * that it can fetch from, and within the device's own memory: the peaks that figures are compared with.
 */
#pragma once

#include "kernels/backend.h"

struct gpu_copy {
	struct queue *q;
	struct buffer from, to; /* to: in the device's own memory */
	size_t bytes; /* of one copy */
};

/* Allocates what is copied, and a queue of the calling thread; `from` is memory of the host, or the
 * device's own. -ENOMEM. */
int gpu_copy_open_link(struct backend *backend, struct gpu_copy *out, struct error *err);
int gpu_copy_open_own(struct backend *backend, struct gpu_copy *out, struct error *err);
/* May be called for one that was not opened, or only in part. */
void gpu_copy_close(struct gpu_copy *copy);

/* GB/s over the link to the device and from it, one after the other. */
int gpu_copy_link(struct gpu_copy *copy, double *to, double *from, struct error *err);
/* GB/s within the device, read and written. 0: the device has failed. */
double gpu_copy_own(struct gpu_copy *copy);
