/* The admin endpoint's answer to TraceRequest: spans of the timeline. */
#include "shared/ipc/daemon_private.h"

#include "shared/base/timeline.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	/* of one answer, about 50 KiB */
	SPANS_MAX = 1024,
};
/* If the program that asked dies, the timeline stays on no longer than this. */
#define ON_NS_MAX 60000000000ull

static Outrider__TraceSpan *make_span(const struct timeline_span *from)
{
	Outrider__TraceSpan *span = malloc(sizeof(*span));
	if (span == NULL)
		return NULL;
	outrider__trace_span__init(span);
	span->start_ns = from->start_ns;
	span->length_ns = from->end_ns - from->start_ns;
	span->session = from->session;
	span->kind = from->kind;
	span->lane = from->lane;
	span->value0 = from->value[0];
	span->value1 = from->value[1];
	return span;
}

bool daemon_fill_trace(const Outrider__TraceRequest *request, Outrider__Envelope *reply)
{
	static struct timeline_span spans[SPANS_MAX]; /* belongs to the loop thread */
	Outrider__Trace *trace = malloc(sizeof(*trace));
	if (trace == NULL)
		return false;
	outrider__trace__init(trace);
	reply->body_case = OUTRIDER__ENVELOPE__BODY_TRACE;
	reply->trace = trace;
	if (request->on_ns > 0)
		timeline_enable(
			clock_ns() + (request->on_ns < ON_NS_MAX ? request->on_ns : ON_NS_MAX));
	uint64_t next = request->next, lost = 0;
	uint32_t n = timeline_read(&next, spans, SPANS_MAX, &lost);
	trace->pid = (uint32_t)getpid();
	trace->next = next;
	trace->more = n == SPANS_MAX;
	trace->lost = lost;
	if (n == 0)
		return true;
	trace->spans = malloc(n * sizeof(*trace->spans));
	if (trace->spans == NULL)
		return false;
	while (trace->n_spans < n) {
		Outrider__TraceSpan *span = make_span(&spans[trace->n_spans]);
		if (span == NULL)
			return false;
		trace->spans[trace->n_spans++] = span;
	}
	return true;
}
