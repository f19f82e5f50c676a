/* The last minutes of a service: one sample per look at it. Plain data. */
#pragma once

#include "services/gateway/news.h"
#include "services/gateway/text.h"

enum { HISTORY_SAMPLES = 300 };
/* The least time between two samples. While a model loads, the service is looked at more often than
 * that. */
#define HISTORY_PERIOD_NS UINT64_C(900000000)

/* Values that are not known are NAN. */
struct sample {
	double time_s; /* since 1970 */
	double tokens_per_s; /* of the verifier, since the last sample */
	double k, utility, accepted; /* as in watch_news */
	double hits; /* share of the experts used since the last sample that were in memory */
	double running, waiting; /* sessions */
};

struct history {
	struct sample samples[HISTORY_SAMPLES]; /* number i is at i % HISTORY_SAMPLES */
	uint64_t n; /* of all samples so far; the first has number 1 */
	/* Counters at the last sample, from which the next one is computed. */
	uint64_t at_ns, output_tokens, hits, misses;
};

/* Adds a sample of the news, if it is time. at_ns: when they were taken, by CLOCK_MONOTONIC;
 * time_s: the same moment since 1970. */
void history_add(
	struct history *history, const struct watch_news *news, uint64_t at_ns, double time_s);
/* A JSON array of the samples after number `after`, oldest first, each an object; null for values
 * that are not known. */
void history_print(const struct history *history, uint64_t after, struct text *out);
