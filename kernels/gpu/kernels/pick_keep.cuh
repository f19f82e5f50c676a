/*
 * The tokens that filters keep, in order (by falling z, ties by rising id), as one block finds them
 * without sorting all: in bands of falling z, of which each is collected and sorted. A token is a
 * key: smaller keys come first. Which band a token is in changes nothing but the time.
 */
#pragma once

#include "kernels/gpu/kernels/pick_job.cuh"

/* Tokens of a band that are sorted in shared memory; widths of bands: 16, 8, .. 1/64. */
static const unsigned KEEP_SORT = 2048, KEEP_WIDTHS = 11;

/* What the filters keep: at most n_max; up to the token with which the sum reaches top_p * total;
 * those whose weight is at least min_p; where total is not known yet, only n_max counts.
 * weightless: also those whose weight is 0. */
struct keep_rule {
	uint32_t n_max;
	float top_p, min_p;
	double total;
	bool total_known, weightless;
};

struct keep_shared {
	uint64_t key[KEEP_SORT];
	float weight[KEEP_SORT];
	double partial[64];
	pick_score warp[PICK_THREADS / 32];
	uint32_t width
		[KEEP_WIDTHS]; /* chunks that reach into a band of this width, but no narrower */
	float least; /* the lower end of the band: z - z_max */
	uint32_t found, n; /* in the band; kept */
	double sum; /* of the weights that are kept */
	uint32_t ended;
};

DEV uint64_t key_of(float z, uint32_t token)
{
	uint32_t bits = bits_of_float(z + 0.0f); /* -0 becomes 0 */
	uint32_t rising = bits >> 31 ? ~bits : bits | 0x80000000u;

	return (uint64_t)~rising << 32 | token;
}

DEV float z_of(uint64_t key)
{
	uint32_t rising = ~(uint32_t)(key >> 32);

	return float_of_bits(rising >> 31 ? rising & 0x7fffffffu : ~rising);
}

/* z - z_max, which is 0 where both are -inf. */
DEV float below(float z, float z_max)
{
	return z == z_max ? 0.0f : z - z_max;
}

/* Sorts key[0..n-1], in shared or global memory: a bitonic sort in which all comparisons put the
 * smaller key first, so that places behind n count as greatest. */
DEV void block_sort(uint64_t *key, unsigned n)
{
	for (unsigned size = 2; size / 2 < n; size *= 2)
		for (unsigned half = size / 2; half > 0; half /= 2) {
			bool flip = half == size / 2;

			for (unsigned i = threadIdx.x; i < (n + size - 1) / size * (size / 2);
				i += PICK_THREADS) {
				unsigned first = i / half * 2 * half, at = i % half;
				unsigned low = first + at;
				unsigned high = flip ? first + 2 * half - 1 - at : low + half;

				if (high < n && key[low] > key[high]) {
					uint64_t swap = key[low];

					key[low] = key[high];
					key[high] = swap;
				}
			}
			__syncthreads();
		}
}

/* Lowers s->least to the end of the next band: as wide as possible while at most n_chunks contain
 * any of it. The last band takes all that is left. */
DEV void next_band(
	keep_shared *s, const float *most, unsigned chunks, float z_max, unsigned n_chunks)
{
	unsigned tid = threadIdx.x;
	float from = s->least;

	if (tid < KEEP_WIDTHS)
		s->width[tid] = 0;
	__syncthreads();
	for (unsigned c = tid; c < chunks; c += PICK_THREADS) {
		float x = below(most[c], z_max), width = 1.0f / 64;

		for (unsigned i = 0; i < KEEP_WIDTHS; i++, width *= 2)
			if (x >= from - width) {
				atomicAdd(&s->width[i], 1u);
				break;
			}
	}
	__syncthreads();
	if (tid == 0) {
		unsigned i = 0, n = s->width[0];
		float width = 1.0f / 64;

		for (; i + 1 < KEEP_WIDTHS && n + s->width[i + 1] <= n_chunks; width *= 2)
			n += s->width[++i];
		s->least = from > -88 ? from - width : -F_INFINITY;
		s->found = 0;
	}
	__syncthreads();
}

/* Writes the keys of tokens with least <= z - z_max < end to dist[0..s->found-1], in any order. */
DEV void collect_band(keep_shared *s, const pick_args *a, const float *z, const float *most,
	float z_max, float end, uint64_t *dist)
{
	pick_lane at = lane_of_thread();
	float least = s->least;

	for (unsigned c = at.half; c < a->chunks; c += PICK_THREADS / 16) {
		if (!(below(most[c], z_max) >= least))
			continue;
		for (unsigned i = 0; i < PICK_CHUNK / 16; i++) {
			unsigned token = c * PICK_CHUNK + 16 * i + at.lane;
			if (token >= a->n_vocab)
				continue;
			float x = below(z[token], z_max);

			if (x >= least && x < end)
				dist[atomicAdd(&s->found, 1u)] = key_of(z[token], token);
		}
	}
	__syncthreads();
}

DEV void sort_band(keep_shared *s, uint64_t *dist)
{
	unsigned n = s->found;

	if (n > KEEP_SORT) {
		block_sort(dist, n);
		return;
	}
	for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS)
		s->key[i] = dist[i];
	__syncthreads();
	block_sort(s->key, n);
	for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS)
		dist[i] = s->key[i];
	__syncthreads();
}

/* One thread: takes tokens with these weights while the rule allows. */
DEV void take_some(keep_shared *s, unsigned n, const keep_rule *rule)
{
	double sum = s->sum, enough = (double)rule->top_p * rule->total;
	uint32_t kept = s->n;

	for (unsigned i = 0; i < n && !s->ended; i++) {
		float weight = s->weight[i];

		/* In falling order the first token below the bound, or without weight, ends it. */
		if (kept > 0 && ((weight == 0 && !rule->weightless) ||
					(rule->total_known && weight < rule->min_p))) {
			s->ended = 1;
			break;
		}
		sum = sum + (double)weight;
		kept++;
		if (kept == rule->n_max || (rule->total_known && rule->top_p < 1 && sum >= enough))
			s->ended = 1;
	}
	s->sum = sum;
	s->n = kept;
}

/* Takes tokens of dist[0..n-1], which are in order, until the rule ends it: s->n, s->sum, s->ended
 * go on. */
DEV void take(keep_shared *s, const uint64_t *dist, unsigned n, float z_max, const keep_rule *rule)
{
	for (unsigned at = 0; at < n && !s->ended; at += KEEP_SORT) {
		unsigned some = n - at < KEEP_SORT ? n - at : KEEP_SORT;

		for (unsigned i = threadIdx.x; i < some; i += PICK_THREADS)
			s->weight[i] = exp32(z_of(dist[at + i]) - z_max);
		__syncthreads();
		if (threadIdx.x == 0)
			take_some(s, some, rule);
		__syncthreads();
	}
}

DEV void begin_taking(keep_shared *s)
{
	__syncthreads();
	if (threadIdx.x == 0) {
		s->n = 0;
		s->sum = 0;
		s->ended = 0;
	}
	__syncthreads();
}

/* What a rule keeps of a job's z: the keys of s->n tokens in dist, in order, and s->sum of their
 * weights. */
DEV void keep_by(
	keep_shared *s, const pick_args *a, unsigned job, float z_max, const keep_rule *rule)
{
	const float *z = a->z + (size_t)job * a->n_vocab;
	const float *most = a->most + (size_t)job * a->chunks;
	uint64_t *dist = a->dist + (size_t)job * a->n_vocab;
	float end = F_INFINITY;

	begin_taking(s);
	if (threadIdx.x == 0)
		s->least = 0;
	__syncthreads();
	/* Tokens further below have no weight. */
	float last = rule->weightless ? -F_INFINITY : -88.0f;
	for (unsigned n_chunks = 32; !s->ended && end > last; n_chunks *= 4) {
		next_band(s, most, a->chunks, z_max, n_chunks);
		collect_band(s, a, z, most, z_max, end, dist + s->n);
		sort_band(s, dist + s->n);
		take(s, dist + s->n, s->found, z_max, rule);
		end = s->least;
		__syncthreads();
	}
}

/* What top-k, top-p and min-p keep (sampler_keep). total: the sum over the vocabulary, where it
 * counts. */
DEV void keep_filtered(keep_shared *s, const pick_args *a, unsigned job, float z_max,
	uint32_t top_k, float top_p, float min_p, double total)
{
	bool limited = top_k > 0 && top_k < a->n_vocab;
	keep_rule rule = {limited ? top_k : a->n_vocab, top_p, min_p, total, true, false};

	rule.total_known = top_p == 1 || !limited;
	keep_by(s, a, job, z_max, &rule);
	if (rule.total_known)
		return;
	/* top-p takes a share of what top-k kept. */
	rule.total_known = true;
	rule.total = s->sum;
	rule.n_max = s->n;
	unsigned n = s->n;
	begin_taking(s);
	take(s, a->dist + (size_t)job * a->n_vocab, n, z_max, &rule);
}

/* How many of dist[0..n-1] have at least this weight; they come first. */
DEV unsigned count_heavy(keep_shared *s, const uint64_t *dist, unsigned n, float z_max, float least)
{
	__syncthreads();
	if (threadIdx.x == 0)
		s->found = 0;
	__syncthreads();
	for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS)
		if (exp32(z_of(dist[i]) - z_max) >= least)
			atomicAdd(&s->found, 1u);
	__syncthreads();
	return s->found;
}
