#include "bench/src/device_copy.h"

#include "shared/base/clock.h"

#include <string.h>

/* More than a GPU's caches hold, and what the emulation copies in no time. */
#define DEVICE_BYTES (512u << 20)
#define EMULATED_BYTES (256u << 10)
#define COPIES 4

int device_copy_open(struct backend *backend, struct device_copy *out, struct error *err)
{
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = backend->ops;
	struct backend_memory memory;

	*out = (struct device_copy){0};
	ops->memory(backend, &memory);
	out->bytes = strcmp(ops->name, "simt") == 0   ? EMULATED_BYTES
		     : memory.free / 8 < DEVICE_BYTES ? memory.free / 8
						      : DEVICE_BYTES;
	int rc = ops->alloc(backend, out->bytes, BUFFER_OWN, &out->from, err);
	if (rc == 0)
		rc = ops->alloc(backend, out->bytes, BUFFER_OWN, &out->to, err);
	return rc == 0 ? ops->queue(backend, &limits, &out->q, err) : rc;
}

void device_copy_close(struct device_copy *copy)
{
	if (copy->q != NULL)
		copy->q->ops->queue_free(copy->q);
	if (copy->to.backend != NULL)
		copy->to.backend->ops->free(&copy->to);
	if (copy->from.backend != NULL)
		copy->from.backend->ops->free(&copy->from);
	*copy = (struct device_copy){0};
}

double device_copy_measure(struct device_copy *copy)
{
	const struct backend_ops *ops = copy->q->ops;
	uint64_t start = clock_ns();

	for (int i = 0; i < COPIES; i++)
		ops->copy(copy->q, (struct place){&copy->to, 0}, (struct place){&copy->from, 0},
			copy->bytes);
	if (ops->wait(copy->q, ops->ticket(copy->q)) < 0)
		return 0;
	return 2.0 * COPIES * (double)copy->bytes / (double)(clock_ns() - start);
}
