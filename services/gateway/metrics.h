/*
 * Counters for Prometheus (text exposition format 0.0.4): of what the gateway itself did, and of the service as the watch heard
 * it. On the loop's thread.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/text.h"
#include "services/gateway/watch.h"

enum { METRICS_POSITIONS = 16, METRICS_BOUNDS = 14, METRICS_STATUSES = 600 };

struct histogram {
	uint64_t below[METRICS_BOUNDS + 1]; /* of each bound of its table, and beyond */
	double sum;
};

struct metrics {
	uint64_t responses
		[METRICS_STATUSES]; /* by HTTP status; 499: the client left before the end */
	uint64_t prompt_tokens, completion_tokens, drafted, accepted, restarts;
	uint64_t drafted_at[METRICS_POSITIONS], accepted_at[METRICS_POSITIONS];
	uint64_t k_used[METRICS_POSITIONS];
	struct histogram first_token_s, token_s;
	uint64_t connections; /* that are open */
};

void metrics_answer(struct metrics *metrics, const struct outrider_usage *usage);
void metrics_time(struct histogram *histogram, double seconds);
/* The page of /metrics. */
void metrics_print(const struct metrics *metrics, const struct watch_news *news, struct text *out);
