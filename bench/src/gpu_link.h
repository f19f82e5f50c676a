/*
 * How fast large copies go over the link between a device, or its emulation, and memory of the host
 * that it can fetch from: the peaks that figures of the link are compared with.
 */
#pragma once

#include "kernels/backend.h"

struct gpu_link {
	struct queue *q;
	struct buffer host, own;
	size_t bytes; /* of one copy */
};

/* Allocates what is copied, and a queue of the calling thread. -ENOMEM. */
int gpu_link_open(struct backend *backend, struct gpu_link *out, struct error *err);
/* May be called for one that was not opened, or only in part. */
void gpu_link_close(struct gpu_link *link);
/* GB/s to the device and from it, one after the other. */
int gpu_link_measure(struct gpu_link *link, double *to, double *from, struct error *err);
