/*
 * The result of one look at the service as numbers: for /metrics, /health and the names of models.
 * Plain data. A value that is not known is 0, false or NAN, as its comment says. Counters are those
 * of the processes, and begin again when one starts without its region.
 */
#pragma once

#include "client/summary/look.h"

#include <stdbool.h>
#include <stdint.h>

enum { WATCH_NAME_BYTES = 256, WATCH_STATE_BYTES = 128, NEWS_PROCESSES = 8 };

struct news_process {
	char name[24];
	bool up; /* it answers */
	uint64_t generation, restarts; /* since the gateway began to look */
	uint64_t uptime_ns, rss_bytes;
};

struct news_cache {
	bool known;
	uint64_t hits, misses, loads, evictions, loaded_bytes, self_served, load_failures, wait_ns;
	uint64_t prefetched, prefetch_used, prefetch_wasted;
	uint64_t budget_bytes, resident, slots, loading;
	double link_bytes_per_second;
};

struct watch_news {
	bool ready; /* the verifier takes requests */
	char state[WATCH_STATE_BYTES]; /* the verifier's: "loading", "ready", "down", ... */
	char model[WATCH_NAME_BYTES]; /* file name without .gguf; "": not known so far */
	uint64_t context; /* tokens of one session */
	uint64_t generation; /* of the verifier */
	uint64_t running, waiting, places, queue_max; /* sessions of the verifier */
	uint64_t output_tokens, iterations, kv_held_tokens, kv_tokens; /* of the verifier */
	/* Over the running sessions: the mean of K, the mean of the measured utility (NAN: none),
	 * and the share of drafted tokens that were accepted. */
	double k, utility, accepted;
	uint64_t drafter_drafted, drafter_requests, drafter_busy_ns;
	uint64_t decisions, records_lost; /* of the policy-controller */
	struct news_cache cache;
	struct news_process processes[NEWS_PROCESSES];
	uint64_t n_processes, answering;
};

/* Updates the news by the result of a look. */
void news_take(struct watch_news *news, const struct look *look);
