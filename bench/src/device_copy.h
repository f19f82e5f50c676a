/*
 * How fast a device, or its emulation, copies within its own memory: the peak that its figures are
 * compared with.
 */
#pragma once

#include "kernels/backend.h"

struct device_copy {
	struct queue *q;
	struct buffer from, to;
	size_t bytes;
};

/* Allocates what is copied, and a queue of the calling thread. -ENOMEM. */
int device_copy_open(struct backend *backend, struct device_copy *out, struct error *err);
void device_copy_close(struct device_copy *copy);
/* GB/s, read and written. 0: the device has failed. */
double device_copy_measure(struct device_copy *copy);
