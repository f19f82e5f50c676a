#include "bench/src/gpu_link.h"

#include "bench/src/gpu.h"
#include "shared/base/clock.h"

/* Long enough that how a copy starts does not count, and what the emulation copies in no time. */
#define LINK_BYTES (256u << 20)
#define EMULATED_BYTES (256u << 10)
#define COPIES 4

int gpu_link_open(struct backend *backend, struct gpu_link *out, struct error *err)
{
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = backend->ops;
	struct backend_memory memory;

	*out = (struct gpu_link){0};
	ops->memory(backend, &memory);
	out->bytes = gpu_emulated(backend)	    ? EMULATED_BYTES
		     : memory.free / 4 < LINK_BYTES ? memory.free / 4
						    : LINK_BYTES;
	int rc = ops->alloc(backend, out->bytes, BUFFER_HOST, &out->host, err);
	if (rc == 0)
		rc = ops->alloc(backend, out->bytes, BUFFER_OWN, &out->own, err);
	return rc == 0 ? ops->queue(backend, &limits, &out->q, err) : rc;
}

void gpu_link_close(struct gpu_link *link)
{
	if (link->q != NULL)
		link->q->ops->queue_free(link->q);
	if (link->own.backend != NULL)
		link->own.backend->ops->free(&link->own);
	if (link->host.backend != NULL)
		link->host.backend->ops->free(&link->host);
	*link = (struct gpu_link){0};
}

static int measure(struct gpu_link *link, const struct buffer *to, const struct buffer *from,
	double *gb_s, struct error *err)
{
	uint64_t start = clock_ns();

	for (int i = 0; i < COPIES; i++)
		link->q->ops->copy(
			link->q, (struct place){to, 0}, (struct place){from, 0}, link->bytes);
	int rc = gpu_finish(link->q, err);
	*gb_s = (double)link->bytes * COPIES / (double)(clock_ns() - start);
	return rc;
}

int gpu_link_measure(struct gpu_link *link, double *to, double *from, struct error *err)
{
	int rc = measure(link, &link->own, &link->host, to, err);

	return rc == 0 ? measure(link, &link->host, &link->own, from, err) : rc;
}
