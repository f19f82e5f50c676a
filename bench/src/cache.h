/*
 * outrider-bench cache: routing traces of real runs, and what every policy of the expert-cache would have done with them.
 *   record  decodes the prompts of a workload with a model and a drafter, here, without the service, and writes what each
 *           layer of each pass asked of the experts, what was hinted, and how long computing took
 *   synth   writes a trace without a model: uniform, skewed, or of changing phases
 *   profile writes how often the traces used each expert, for --profile and the setting of that name
 *   replay  runs policies over traces against a model of the link, and prints them beside Belady's bound
 */
#pragma once

#include "bench/src/cache_trace.h"

/* The subcommand; returns a sysexits status. */
int bench_cache(int argc, char **argv);

enum cache_drafter { CACHE_DRAFT_NONE, CACHE_DRAFT_MODEL, CACHE_DRAFT_REPLAY, CACHE_DRAFT_NGRAM };

struct cache_record_options {
	const char *model, *draft, *workload, *out;
	enum cache_drafter drafter;
	uint32_t k, limit, max_tokens, threads;
	uint32_t accept_percent; /* replay: how many drafted tokens are right */
};

/* cache_record.c */
int cache_record(const struct cache_record_options *options, struct error *err);

enum cache_synth_kind { SYNTH_UNIFORM, SYNTH_ZIPF, SYNTH_PHASES };

struct cache_synth_options {
	const char *out;
	enum cache_synth_kind kind;
	uint32_t n_layers, n_experts, n_experts_used, k, passes;
	uint32_t
		hint_percent; /* of what a pass needs, hinted for before it; as many wrong ones make up the rest */
	uint64_t seed;
};

/* cache_hints.c. Instead of the hints that were recorded: none, or before each decoding pass all that it will use, which is
 * as much as anybody can know who does not know what comes after it. */
int cache_trace_rehint(struct cache_trace *trace, bool perfect, struct error *err);

/* cache_synth.c. The trace is the caller's to exit. */
int cache_synth(
	const struct cache_synth_options *options, struct cache_trace *out, struct error *err);
