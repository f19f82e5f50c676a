#include "services/expert-cache/hints/hint_quality.h"

#include "shared/base/bits.h"
#include "shared/base/counter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const hint_source_names[HINT_SOURCES + 1] = {
	[HINT_DRAFT] = "draft",
	[HINT_GATE] = "gate",
	[HINT_HISTORY] = "history",
	[HINT_GATE_FAR] = "gate-far",
	[HINT_SOURCES] = "any",
};

/* Nobody predicts more passes ahead than this. A later iteration is invalid, and would close the
 * open passes for ever. */
#define AHEAD_PASSES 4u

struct hint_pass {
	uint64_t iteration; /* 0: free */
	uint64_t begun_ns; /* 0: not begun */
};

enum bit_set { BITS_USED, BITS_HINTED, BIT_SETS = BITS_HINTED + HINT_SOURCES };

int hint_quality_init(
	struct hint_quality *quality, uint32_t n_layers, uint32_t n_experts, struct error *err)
{
	uint32_t n_words = (n_experts + 63) / 64;
	size_t n_passes = (size_t)n_layers * HINT_PASSES;
	*quality = (struct hint_quality){
		.n_layers = n_layers,
		.n_experts = n_experts,
		.n_words = n_words,
		.counts = calloc(n_layers, sizeof(*quality->counts)),
		.passes = calloc(n_passes, sizeof(*quality->passes)),
		.bits = calloc(n_passes * BIT_SETS * n_words, sizeof(*quality->bits)),
		.made_us = calloc(n_passes * HINT_SOURCES * n_experts, sizeof(*quality->made_us)),
	};
	if (quality->counts && quality->passes && quality->bits && quality->made_us)
		return 0;
	hint_quality_exit(quality);
	return error_set(err, ENOMEM, "no memory to judge hints for %u layers of %u experts",
		n_layers, n_experts);
}

void hint_quality_exit(struct hint_quality *quality)
{
	free(quality->counts);
	free(quality->passes);
	free(quality->bits);
	free(quality->made_us);
	memset(quality, 0, sizeof(*quality));
}

static uint64_t *bits_of(const struct hint_quality *q, size_t pass, unsigned set)
{
	return q->bits + (pass * BIT_SETS + set) * q->n_words;
}

static uint32_t *made_of(const struct hint_quality *q, size_t pass, unsigned source)
{
	return q->made_us + (pass * HINT_SOURCES + source) * q->n_experts;
}

/* Sets how long before its use an expert was hinted, by this source or (HINT_SOURCES) by the first
 * that did; negative: after. False: it was not hinted. */
static bool hinted(const struct hint_quality *q, size_t pass, unsigned source, uint32_t expert,
	int32_t *before_us)
{
	uint32_t begun_us = (uint32_t)(q->passes[pass].begun_ns / 1000);
	unsigned first = source < HINT_SOURCES ? source : 0;
	unsigned end = source < HINT_SOURCES ? source + 1 : HINT_SOURCES;
	bool any = false;
	for (unsigned s = first; s < end; s++) {
		if (!bits_get(bits_of(q, pass, BITS_HINTED + s), expert))
			continue;
		/* Modulo 2^32, which is more than an hour. */
		int32_t us = (int32_t)(begun_us - made_of(q, pass, s)[expert]);
		*before_us = any && *before_us > us ? *before_us : us;
		any = true;
	}
	return any;
}

static void count_pass(
	const struct hint_quality *q, size_t pass, unsigned source, struct hint_counts *counts)
{
	const uint64_t *used = bits_of(q, pass, BITS_USED);
	uint64_t n_used = 0, n_found = 0, n_hinted = 0, n_late = 0, lead_us = 0;
	for (uint32_t e = 0; e < q->n_experts; e++) {
		int32_t before_us = 0;
		bool is_used = bits_get(used, e),
		     is_hinted = hinted(q, pass, source, e, &before_us);
		/* The ring of a hint may have been read before that of the activation which it came
		 * after. */
		bool in_time = is_hinted && before_us >= 0;
		n_used += is_used;
		n_late += is_hinted && !in_time;
		n_hinted += in_time;
		n_found += in_time && is_used;
		lead_us += in_time && is_used ? (uint32_t)before_us : 0;
	}
	counter_add(&counts->late, n_late);
	if (n_hinted == 0)
		return;
	counter_add(&counts->passes, 1);
	counter_add(&counts->used, n_used);
	counter_add(&counts->found, n_found);
	counter_add(&counts->hinted, n_hinted);
	counter_add(&counts->lead_ns, lead_us * 1000);
}

/* Counts a pass of a layer that is finally over, and frees its place. */
static void close_pass(struct hint_quality *q, uint32_t layer, size_t pass)
{
	for (unsigned s = 0; s <= HINT_SOURCES && q->passes[pass].begun_ns != 0; s++)
		count_pass(q, pass, s, &q->counts[layer][s]);
	memset(bits_of(q, pass, 0), 0, BIT_SETS * q->n_words * sizeof(*q->bits));
	q->passes[pass] = (struct hint_pass){0};
}

/* The layer's open pass with this iteration. If there is none, it is opened in the place of the
 * oldest; SIZE_MAX when all open ones are newer. */
static size_t open_pass(struct hint_quality *q, uint32_t layer, uint64_t iteration)
{
	size_t first = (size_t)layer * HINT_PASSES, oldest = first;
	for (size_t p = first; p < first + HINT_PASSES; p++) {
		if (q->passes[p].iteration == iteration)
			return p;
		if (q->passes[p].iteration < q->passes[oldest].iteration)
			oldest = p;
	}
	if (q->passes[oldest].iteration > iteration)
		return SIZE_MAX;
	close_pass(q, layer, oldest);
	q->passes[oldest].iteration = iteration;
	return oldest;
}

/* Another verifier counts from elsewhere: predictions for its predecessor will not be used. */
static void forget(struct hint_quality *q)
{
	size_t n = (size_t)q->n_layers * HINT_PASSES;
	memset(q->passes, 0, n * sizeof(*q->passes));
	memset(q->bits, 0, n * BIT_SETS * q->n_words * sizeof(*q->bits));
}

void hint_quality_used(struct hint_quality *quality, uint32_t layer, uint32_t expert,
	uint64_t iteration, uint64_t begun_ns)
{
	if (iteration == 0)
		return;
	if (iteration < quality->newest || iteration - quality->newest > UINT32_MAX)
		forget(quality);
	quality->newest = iteration;
	if (begun_ns == 0)
		return;
	size_t pass = open_pass(quality, layer, iteration);
	if (pass == SIZE_MAX)
		return;
	quality->passes[pass].begun_ns = begun_ns;
	bits_set(bits_of(quality, pass, BITS_USED), expert);
}

static void count_late(struct hint_quality *q, const struct slot_hint *hint)
{
	counter_add(&q->counts[hint->layer][hint->source].late, 1);
	counter_add(&q->counts[hint->layer][HINT_SOURCES].late, 1);
}

bool hint_quality_hinted(struct hint_quality *quality, const struct slot_hint *hint)
{
	uint64_t ahead = (uint64_t)AHEAD_PASSES * quality->n_layers;
	if (hint->iteration == 0 || quality->newest == 0)
		return true;
	if (hint->iteration > quality->newest + ahead)
		return false;
	size_t pass = open_pass(quality, hint->layer, hint->iteration);
	if (pass == SIZE_MAX) {
		count_late(quality, hint);
		return false;
	}
	uint64_t begun_ns = quality->passes[pass].begun_ns;
	if (begun_ns != 0 && hint->made_ns >= begun_ns) {
		count_late(quality, hint);
		return false;
	}
	uint64_t *told = bits_of(quality, pass, BITS_HINTED + hint->source);
	if (!bits_get(told, hint->expert)) {
		bits_set(told, hint->expert);
		made_of(quality, pass, hint->source)[hint->expert] =
			(uint32_t)(hint->made_ns / 1000);
	}
	return hint->iteration > quality->newest;
}

const struct hint_counts *hint_quality_counts(
	const struct hint_quality *quality, uint32_t layer, unsigned source)
{
	return &quality->counts[layer][source];
}
