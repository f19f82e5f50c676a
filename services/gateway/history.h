/* The last minutes of a service: a sample for each look at it. Plain data. */
#pragma once

#include "services/gateway/news.h"
#include "services/gateway/text.h"

enum { HISTORY_SAMPLES = 300 };
/* The least time between two samples: while a model loads the service is looked at more often. */
#define HISTORY_PERIOD_NS UINT64_C(900000000)

/* What is not known is NAN. */
struct sample {
	double time_s; /* since 1970 */
	double tokens_per_s; /* of the verifier, since the sample before */
	double k, utility, accepted; /* as in watch_news */
	double hits; /* share of the experts used since the sample before that were in memory */
	double running, waiting; /* sessions */
};

struct history {
	struct sample samples[HISTORY_SAMPLES]; /* number i is at i % HISTORY_SAMPLES */
	uint64_t n; /* ever; the first has number 1 */
	/* Counters at the last sample, of which the next is made. */
	uint64_t at_ns, output_tokens, hits, misses;
};

/* Adds, if it is time, what the news say of the moment at_ns (CLOCK_MONOTONIC), which is time_s on the wall. */
void history_add(
	struct history *history, const struct watch_news *news, uint64_t at_ns, double time_s);
/* A JSON array of those behind number `after`, oldest first, each an object; what is not known is null. */
void history_print(const struct history *history, uint64_t after, struct text *out);
