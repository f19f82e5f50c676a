#include "bench/src/gpu_copy.h"

#include "bench/src/gpu.h"
#include "shared/base/clock.h"

/* Over the link: long enough that how a copy starts does not count. Within the device: more than its
 * caches hold. The emulation copies its bytes in no time. */
#define LINK_BYTES (256u << 20)
#define OWN_BYTES (512u << 20)
#define EMULATED_BYTES (256u << 10)
#define COPIES 4

static int open_copy(struct backend *backend, enum buffer_kind from, size_t most,
	struct gpu_copy *out, struct error *err)
{
	const struct queue_limits limits = {0};
	const struct backend_ops *ops = backend->ops;
	size_t n_own = from == BUFFER_OWN ? 2 : 1;
	struct backend_memory memory;

	*out = (struct gpu_copy){0};
	ops->memory(backend, &memory);
	size_t part = memory.free / 4 / n_own;
	out->bytes = gpu_emulated(backend) ? EMULATED_BYTES : part < most ? part : most;
	int rc = ops->alloc(backend, out->bytes, from, &out->from, err);
	if (rc == 0)
		rc = ops->alloc(backend, out->bytes, BUFFER_OWN, &out->to, err);
	return rc == 0 ? ops->queue(backend, &limits, &out->q, err) : rc;
}

int gpu_copy_open_link(struct backend *backend, struct gpu_copy *out, struct error *err)
{
	return open_copy(backend, BUFFER_HOST, LINK_BYTES, out, err);
}

int gpu_copy_open_own(struct backend *backend, struct gpu_copy *out, struct error *err)
{
	return open_copy(backend, BUFFER_OWN, OWN_BYTES, out, err);
}

void gpu_copy_close(struct gpu_copy *copy)
{
	if (copy->q != NULL)
		copy->q->ops->queue_free(copy->q);
	if (copy->to.backend != NULL)
		copy->to.backend->ops->free(&copy->to);
	if (copy->from.backend != NULL)
		copy->from.backend->ops->free(&copy->from);
	*copy = (struct gpu_copy){0};
}

static int measure(struct gpu_copy *copy, const struct buffer *to, const struct buffer *from,
	double *gb_s, struct error *err)
{
	uint64_t start = clock_ns();

	for (int i = 0; i < COPIES; i++)
		copy->q->ops->copy(
			copy->q, (struct place){to, 0}, (struct place){from, 0}, copy->bytes);
	int rc = gpu_finish(copy->q, err);
	*gb_s = (double)copy->bytes * COPIES / (double)(clock_ns() - start);
	return rc;
}

int gpu_copy_link(struct gpu_copy *copy, double *to, double *from, struct error *err)
{
	int rc = measure(copy, &copy->to, &copy->from, to, err);

	return rc == 0 ? measure(copy, &copy->from, &copy->to, from, err) : rc;
}

double gpu_copy_own(struct gpu_copy *copy)
{
	struct error err;
	double gb_s;

	return measure(copy, &copy->to, &copy->from, &gb_s, &err) < 0 ? 0 : 2 * gb_s;
}
