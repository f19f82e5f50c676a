/* Traces without a model, from a seed: for tests, and to see what a policy does where the answer is
 * known. */
#include "bench/src/cache.h"

#include "shared/spec/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	PHASE_PASSES = 128, /* of one phase */
	COMPUTE_NS = 20000, /* half a layer */
	DRAFT_TOKEN_NS = 100000,
};

struct synth {
	const struct cache_synth_options *options;
	struct cache_trace *trace;
	uint64_t random;
	double *popularity; /* [n_experts] by rank, cumulative */
	uint32_t *order; /* [n_layers][n_experts] rank -> expert */
	bool *needed; /* [n_layers][n_experts] of the pass */
	uint16_t *tokens; /* [n_layers][n_experts] */
};

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t draw(struct synth *s)
{
	uint64_t z = s->random += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static double uniform(struct synth *s)
{
	return (double)(draw(s) >> 11) * 0x1p-53;
}

/* Gives each layer another order of popularity. */
static void shuffle(struct synth *s)
{
	uint32_t n = s->options->n_experts;
	for (uint32_t l = 0; l < s->options->n_layers; l++) {
		uint32_t *order = s->order + (size_t)l * n;
		for (uint32_t i = 0; i < n; i++)
			order[i] = i;
		for (uint32_t i = n; i-- > 1;) {
			uint32_t other = (uint32_t)(draw(s) % (i + 1)), kept = order[i];
			order[i] = order[other];
			order[other] = kept;
		}
	}
}

/* Zipf's law with exponent 1, or equal popularity. */
static void set_popularity(struct synth *s)
{
	double sum = 0;
	for (uint32_t i = 0; i < s->options->n_experts; i++) {
		sum += s->options->kind == SYNTH_UNIFORM ? 1 : 1. / (i + 1);
		s->popularity[i] = sum;
	}
}

static uint32_t draw_expert(struct synth *s, uint32_t layer)
{
	uint32_t n = s->options->n_experts, rank = 0;
	double at = uniform(s) * s->popularity[n - 1];
	while (rank + 1 < n && s->popularity[rank] <= at)
		rank++;
	return s->order[(size_t)layer * n + rank];
}

/* Chooses the experts of each token of the pass. */
static void choose(struct synth *s)
{
	const struct cache_synth_options *o = s->options;
	size_t n_ids = (size_t)o->n_layers * o->n_experts;
	memset(s->tokens, 0, n_ids * sizeof(*s->tokens));
	for (uint32_t l = 0; l < o->n_layers; l++)
		for (uint32_t t = 0; t <= o->k; t++) {
			uint16_t *row = s->tokens + (size_t)l * o->n_experts;
			memset(s->needed, 0, o->n_experts * sizeof(*s->needed));
			for (uint32_t chosen = 0; chosen < o->n_experts_used;) {
				uint32_t expert = draw_expert(s, l);
				chosen += !s->needed[expert];
				row[expert] = (uint16_t)(row[expert] + !s->needed[expert]);
				s->needed[expert] = true;
			}
		}
}

/* Hints for a share of the pass's experts, and for as many other experts as are missing from that.
 */
static int hint(struct synth *s)
{
	const struct cache_synth_options *o = s->options;
	uint64_t span_ns = (uint64_t)o->k * DRAFT_TOKEN_NS;
	for (uint32_t l = 0; l < o->n_layers; l++)
		for (uint32_t e = 0; e < o->n_experts; e++) {
			if (s->tokens[(size_t)l * o->n_experts + e] == 0)
				continue;
			bool right = uniform(s) * 100 < o->hint_percent;
			struct trace_hint to = {.layer = (uint16_t)l,
				.expert = (uint16_t)(right ? e : draw(s) % o->n_experts),
				.source = HINT_DRAFT,
				.score = (float)uniform(s),
				.at_ns = (uint32_t)((l + 1) * span_ns / o->n_layers)};
			if (cache_trace_add_hint(s->trace, &to) < 0)
				return -ENOMEM;
		}
	return 0;
}

static int add_pass(struct synth *s, uint32_t number)
{
	const struct cache_synth_options *o = s->options;
	struct trace_pass pass = {.session = 1 + number / PHASE_PASSES,
		.tokens = o->k + 1,
		.drafted = o->k,
		.emitted = 1 + (uint32_t)(draw(s) % (o->k + 1)),
		.draft_ns = (uint64_t)o->k * DRAFT_TOKEN_NS};
	int rc = cache_trace_add_pass(s->trace, &pass);
	choose(s);
	if (rc == 0 && o->k > 0 && o->hint_percent > 0)
		rc = hint(s);
	for (uint32_t l = 0; rc == 0 && l < o->n_layers; l++) {
		struct trace_layer layer = {
			.layer = l, .before_ns = COMPUTE_NS, .after_ns = COMPUTE_NS};
		rc = cache_trace_add_layer(s->trace, &layer);
		for (uint32_t e = 0; rc == 0 && e < o->n_experts; e++) {
			struct trace_use use = {
				(uint16_t)e, s->tokens[(size_t)l * o->n_experts + e]};
			if (use.tokens > 0)
				rc = cache_trace_add_use(s->trace, use);
		}
	}
	return rc;
}

static int fill(struct synth *s)
{
	int rc = 0;
	set_popularity(s);
	shuffle(s);
	for (uint32_t i = 0; rc == 0 && i < s->options->passes; i++) {
		if (s->options->kind == SYNTH_PHASES && i > 0 && i % PHASE_PASSES == 0)
			shuffle(s);
		rc = add_pass(s, i);
	}
	return rc;
}

int cache_synth(const struct cache_synth_options *o, struct cache_trace *out, struct error *err)
{
	static const char *const kinds[] = {"uniform", "zipf", "phases"};
	cache_trace_init(out);
	if (o->n_layers == 0 || o->n_layers > LIMIT_LAYERS || o->n_experts == 0 ||
		o->n_experts > LIMIT_EXPERTS || o->n_experts_used == 0 ||
		o->n_experts_used > o->n_experts || o->k > LIMIT_DRAFT_DEPTH)
		return error_set(err, EINVAL,
			"%u layers with %u of %u experts, K = %u: allowed are 1 to %d layers, 1 to "
			"%d "
			"experts and K up to %d",
			o->n_layers, o->n_experts_used, o->n_experts, o->k, LIMIT_LAYERS,
			LIMIT_EXPERTS, LIMIT_DRAFT_DEPTH);
	out->n_layers = o->n_layers;
	out->n_experts = o->n_experts;
	out->n_experts_used = o->n_experts_used;
	out->k = o->k;
	out->expert_bytes = 80000; /* about that of the demo model */
	for (uint32_t l = 0; l < o->n_layers; l++)
		out->moe[l] = true;
	snprintf(out->name, sizeof(out->name), "%s, K %u, hints %u%%, seed %llu", kinds[o->kind],
		o->k, o->hint_percent, (unsigned long long)o->seed);
	size_t n_ids = (size_t)o->n_layers * o->n_experts;
	struct synth s = {.options = o, .trace = out, .random = o->seed};
	s.popularity = calloc(o->n_experts, sizeof(*s.popularity));
	s.order = calloc(n_ids, sizeof(*s.order));
	s.needed = calloc(o->n_experts, sizeof(*s.needed));
	s.tokens = calloc(n_ids, sizeof(*s.tokens));
	int rc = s.popularity && s.order && s.needed && s.tokens ? fill(&s) : -ENOMEM;
	free(s.popularity);
	free(s.order);
	free(s.needed);
	free(s.tokens);
	if (rc < 0) {
		cache_trace_exit(out);
		return error_set(err, -rc, "no memory for a trace of %u passes", o->passes);
	}
	return 0;
}
