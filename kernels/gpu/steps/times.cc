/* When a queue's steps, waits and copies ran: a mark of the stream where another kind of work, or
 * another part, begins. */
#include "kernels/gpu/steps/steps.h"

bool gpu_watch(struct queue *queue)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct gpu_times *times = q->times;

	if (!times)
		q->times = times = static_cast<struct gpu_times *>(calloc(1, sizeof(*times)));
	if (!times)
		return false;
	assert(!q->in_graph && !times->on);
	times->on = stream_watch(q->stream);
	times->part = 0;
	times->n = 0;
	return times->on;
}

void gpu_mark(struct queue *q, uint32_t part)
{
	gpu_queue(q)->times->part = part;
}

void gpu_times_mark(struct gpu_queue *q, unsigned work)
{
	struct gpu_times *times = q->times;
	unsigned n = times->n, before = n > 0 ? times->of[n - 1].work : GPU_IDLE;

	if (work == before && (work == GPU_IDLE || times->part == times->of[n - 1].part))
		return;
	if (n == STREAM_MARKS)
		return;
	times->of[n] = {times->part, work};
	stream_mark(q->stream, n);
	times->n++;
}

/* The last mark has no end, unless it is a ticket's. */
void gpu_times(
	struct queue *queue, void (*show)(void *arg, const struct queue_span *span), void *arg)
{
	struct gpu_queue *q = gpu_queue(queue);
	struct gpu_times *times = q->times;

	times->on = false;
	for (unsigned i = 0; show && i + 1 < times->n; i++) {
		if (times->of[i].work == GPU_IDLE)
			continue;
		const struct queue_span span = {stream_marked(q->stream, i),
			stream_marked(q->stream, i + 1),
			static_cast<enum queue_work>(times->of[i].work), times->of[i].part};
		if (span.start_ns != 0 && span.end_ns >= span.start_ns)
			show(arg, &span);
	}
}
