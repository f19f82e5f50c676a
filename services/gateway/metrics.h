/*
 * The gateway's own counters for Prometheus (text exposition format 0.0.4). Loop thread.
 * metrics_service.c prints the service's counters, as the watch last heard them.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/limits.h"
#include "services/gateway/news.h"
#include "services/gateway/text.h"

enum { METRICS_POSITIONS = 64, METRICS_BOUNDS = 17, METRICS_STATUSES = 600 };

struct histogram {
	/* counts for each bound of its table, and beyond the last */
	uint64_t below[METRICS_BOUNDS + 1];
	double sum;
};

struct metrics {
	uint64_t responses
		[METRICS_STATUSES]; /* by HTTP status; 499: the client left before the end */
	uint64_t prompt_tokens, completion_tokens, drafted, accepted, restarts;
	uint64_t drafted_at[METRICS_POSITIONS], accepted_at[METRICS_POSITIONS];
	uint64_t k_used[METRICS_POSITIONS];
	struct histogram first_token_s, token_s, queue_s, prefill_s;
	uint64_t connections; /* that are open */
	uint64_t requests_open; /* requests whose response is not all sent */
	uint64_t streams,
		streams_waiting; /* answers that run, and that wait for the service to have room */
	uint64_t limited[LIMITS_KINDS]; /* requests refused because of their key's limits */
	uint64_t received_bytes, sent_bytes; /* of bodies */
};

void metrics_answer(struct metrics *metrics, const struct outrider_usage *usage);
void metrics_time(struct histogram *histogram, double seconds);
/* The page of /metrics. */
void metrics_print(const struct metrics *metrics, const struct watch_news *news, struct text *out);
