/* top-k, top-p and min-p: the tokens that they keep of a vocabulary, in order, without sorting the
 * others. */
#include "kernels/cpu/sampler_internal.h"

#include "kernels/kernels.h"

#include <math.h>

/* Whether a comes before b: by falling p, then by rising id. A total order, so a sort has one
 * result. */
static inline bool before(const struct token_prob *a, const struct token_prob *b)
{
	return a->p > b->p || (a->p == b->p && a->token < b->token);
}

/* A heap with the first (by `before`) at its root. Candidates of a large vocabulary are taken one
 * by one, because the filters rarely want more than a few. */
static void heap_sift(struct token_prob *heap, uint32_t n, uint32_t i)
{
	struct token_prob moving = heap[i];
	for (;;) {
		uint32_t child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && before(&heap[child + 1], &heap[child]))
			child++;
		if (!before(&heap[child], &moving))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = moving;
}

/* Moves the root of heap[0..n-1] to heap[n - 1], behind the heap that remains. */
static void heap_pop(struct token_prob *heap, uint32_t n)
{
	struct token_prob first = heap[0];
	heap[0] = heap[n - 1];
	heap[n - 1] = first;
	heap_sift(heap, n - 1, 0);
}

/* The first `taken` by rank are at the end of dist[0..n-1] in reverse: rank r moves from n - 1 - r
 * to r. */
static void reverse_taken(struct token_prob *dist, uint32_t n, uint32_t taken)
{
	for (uint32_t i = 0; i < taken && i < n / 2; i++) {
		struct token_prob swap = dist[i];
		dist[i] = dist[n - 1 - i];
		dist[n - 1 - i] = swap;
	}
}

/* top-p and min-p over the k that top-k kept, whose sum is total. */
static double trim(
	struct sampler *sampler, const struct sampler_params *params, uint32_t k, double total)
{
	const struct token_prob *dist = sampler->dist;
	double sum = 0;
	uint32_t n = 0;
	while (n < k && (n == 0 || dist[n].p >= params->min_p)) {
		sum += (double)dist[n].p;
		n++;
		if (sum >= (double)params->top_p * total)
			break;
	}
	sampler->n_dist = n;
	return sum;
}

/* Tokens by z[i] - z_max as float32 computes it, which falls with z: least <= that < end. The tokens
 * of a band come before all those of the next. */
struct band {
	float z_max, least, end;
};

static uint32_t chunks_reaching(const struct sampler *sampler, const struct band *band, float least)
{
	uint32_t n = 0;
	for (uint32_t c = 0; c < sampler_chunks(sampler->n_vocab); c++)
		n += sampler->most[c] - band->z_max >= least;
	return n;
}

/* The next lower band, as wide as possible while at most n_chunks contain any of it, but at least
 * 1/64 wide. */
static void band_next(const struct sampler *sampler, struct band *band, uint32_t n_chunks)
{
	float width = 16;
	while (width > 1.0f / 64 && chunks_reaching(sampler, band, band->least - width) > n_chunks)
		width /= 2;
	band->end = band->least;
	band->least -= width;
}

/* Writes the band's tokens to dist[0..]. Returns how many. */
static uint32_t band_collect(
	const struct sampler *sampler, const struct band *band, struct token_prob *dist)
{
	uint32_t n = 0;
	for (uint32_t at = 0; at < sampler->n_vocab; at += SAMPLE_CHUNK) {
		if (!(sampler->most[at / SAMPLE_CHUNK] - band->z_max >= band->least))
			continue;
		uint32_t left = sampler->n_vocab - at;
		uint32_t end = left < SAMPLE_CHUNK ? at + left : at + SAMPLE_CHUNK;
		for (uint32_t i = at; i < end; i++) {
			float below = sampler->logits[i] - band->z_max;
			if (below >= band->least && below < band->end)
				dist[n++] = (struct token_prob){(int32_t)i, sampler->logits[i]};
		}
	}
	return n;
}

/* What the filters have kept so far, in dist[0..n-1]. */
struct kept {
	/* of which top-p takes a share; where both are set, it is not known before top-k is done */
	double total;
	bool total_known; /* if so, the other filters can end the set while tokens are taken */
	uint32_t n, n_max;
	double sum;
};

/* Takes tokens in order from the n of a band, which are at dist[kept->n..]. Returns whether the
 * filters have ended the set. */
static bool keep_band(struct token_prob *dist, uint32_t n, const struct sampler_params *params,
	float z_max, struct kept *kept)
{
	struct token_prob *heap = dist + kept->n;
	uint32_t taken = 0;
	bool ended = false;
	for (uint32_t i = n / 2; i-- > 0;)
		heap_sift(heap, n, i);
	while (taken < n && !ended) {
		float e = kernels_exp(heap[0].p - z_max);
		/* In falling order the first token below the bound, or without weight, ends the
		 * set. */
		ended = kept->n + taken > 0 && (e == 0 || (kept->total_known && e < params->min_p));
		if (ended)
			break;
		heap_pop(heap, n - taken);
		heap[n - 1 - taken].p = e;
		taken++;
		kept->sum += (double)e;
		ended = kept->n + taken == kept->n_max ||
			(kept->total_known && params->top_p < 1 &&
				kept->sum >= (double)params->top_p * kept->total);
	}
	reverse_taken(heap, n, taken);
	kept->n += taken;
	return ended;
}

/* The filters rarely want more than a few tokens, so candidates are searched in bands of falling z,
 * each in more chunks. */
double sampler_keep(struct sampler *sampler, const struct sampler_params *params, uint32_t top)
{
	uint32_t n = sampler->n_vocab, n_chunks = 32;
	uint32_t n_keep = params->top_k > 0 && params->top_k < n ? params->top_k : n;
	float z_max = sampler->logits[top];
	struct band band = {.z_max = z_max, .least = 0, .end = INFINITY};
	struct kept kept = {.total_known = params->top_p == 1 || n_keep == n, .n_max = n_keep};
	if (params->top_p < 1 && n_keep == n)
		kept.total = sampler_exp_sum(sampler, z_max);
	/* Tokens below it have no weight. */
	const float weightless = -88;
	for (;;) {
		uint32_t found = band_collect(sampler, &band, sampler->dist + kept.n);
		if (keep_band(sampler->dist, found, params, z_max, &kept) ||
			band.least <= weightless)
			break;
		band_next(sampler, &band, n_chunks);
		n_chunks *= 4;
	}
	sampler->n_dist = kept.n;
	return kept.total_known ? kept.sum : trim(sampler, params, kept.n, kept.sum);
}
