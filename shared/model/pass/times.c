/* What a device did in a pass, and when, for `outriderctl trace`: only while somebody traces. */
#include "shared/base/timeline.h"
#include "shared/model/pass/forward_internal.h"

enum { LAYER_BITS = 16 };

void times_begin(struct forward *f)
{
	f->timed = f->queue->ops->watch && timeline_on() && f->queue->ops->watch(f->queue);
}

void times_mark(struct forward *f, enum timeline_kind kind)
{
	if (f->timed)
		f->queue->ops->mark(f->queue, (uint32_t)kind << LAYER_BITS | f->layer);
}

static void show(void *arg, const struct queue_span *span)
{
	uint32_t kind = span->work == QUEUE_FLAG   ? TIMELINE_DEVICE_FLAG
			: span->work == QUEUE_COPY ? TIMELINE_DEVICE_COPY
						   : span->part >> LAYER_BITS;
	(void)arg;
	timeline_add(&(struct timeline_span){.start_ns = span->start_ns,
		.end_ns = span->end_ns,
		.kind = kind,
		.lane = TIMELINE_DEVICE_LANE,
		.value = {span->part & ((1u << LAYER_BITS) - 1)}});
}

void times_end(struct forward *f, bool failed)
{
	if (f->timed)
		f->queue->ops->times(f->queue, failed ? NULL : show, NULL);
	f->timed = false;
}
