/*
 * outrider-bench cache: routing traces of real runs, and what every policy of the expert cache
 * would have done with them.
 *
 *   record   decodes the prompts of a workload with a model and a drafter, in this process, and
 *            writes which experts each layer of each pass needed, what was hinted, and how long it
 *            computed
 *   synth    writes a trace without a model: uniform, skewed, or with changing phases
 *   profile  writes how often the traces used each expert, for --profile and the setting of that
 *            name
 *   replay   runs policies over traces with a model of the link, and prints them next to Belady's
 *            bound
 */
#pragma once

#include "bench/src/cache_trace.h"

/* Runs the subcommand; returns a sysexits status. */
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
	/* share of a pass's experts that are hinted before it; as many hints more are wrong, up to
	 * 100 in all */
	uint32_t hint_percent;
	uint64_t seed;
};

/* cache_hints.c. Replaces the recorded hints: by none, or before each decoding pass by all that it
 * will use (perfect). No hints can be better without knowledge of later passes. */
int cache_trace_rehint(struct cache_trace *trace, bool perfect, struct error *err);

/* cache_synth.c. The caller frees the trace. */
int cache_synth(
	const struct cache_synth_options *options, struct cache_trace *out, struct error *err);
