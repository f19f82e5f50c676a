/* From z to tokens: what removes tokens, draws, and the ends of the jobs. */
#pragma once

#include "kernels/gpu/kernels/pick_keep.cuh"

/* Top-n-sigma's bound: 16 partial sums, of tokens with the same id mod 16; the lower half of the
 * warp adds distances, the upper one their squares. Grid: jobs, one warp each. */
KERNEL pick_spread(pick_args a)
{
	const pick_job *job = &a.jobs[blockIdx.x];
	const float *z = a.z + (size_t)blockIdx.x * a.n_vocab;
	pick_state *state = &a.state[blockIdx.x];
	unsigned lane = threadIdx.x;
	double sum = 0, z_max = (double)z[state->top];
	uint32_t count = 0;

	if (!(job->flags & PICK_SIGMA))
		return;
	for (unsigned at = lane % 16; at < a.n_vocab; at += 16) {
		float x = z[at];
		bool counts = x != -F_INFINITY;
		double distance = counts ? (double)x - z_max : 0;

		sum = sum + (lane < 16 ? distance : distance * distance);
		count += counts;
	}
	for (unsigned d = 8; d > 0; d /= 2) {
		sum = sum + __shfl_xor_sync(WARP_ALL, sum, d);
		count += __shfl_xor_sync(WARP_ALL, count, d);
	}
	double squares = __shfl_xor_sync(WARP_ALL, sum, 16u);
	if (lane == 0) {
		double n = (double)count, spread = n * squares - sum * sum;

		state->n = n;
		state->far =
			(double)job->n_sigma * (double)job->n_sigma * (spread > 0 ? spread : 0);
	}
}

/* Removes the tokens beyond that bound. Grid: (tiles, jobs). */
KERNEL pick_cut(pick_args a)
{
	const pick_job *job = &a.jobs[blockIdx.y];
	const pick_state *state = &a.state[blockIdx.y];
	const float *z = a.z + (size_t)blockIdx.y * a.n_vocab;

	if (!(job->flags & PICK_SIGMA))
		return;
	double z_max = (double)z[state->top];
	/* The greatest stays. */
	if (z_max == -1.0 / 0.0)
		return;
	set_tile(&a, [=](unsigned token) {
		double d = ((double)z[token] - z_max) * state->n;

		return d * d <= state->far ? z[token] : -F_INFINITY;
	});
}

/* XTC's least weight of a heavy token. */
DEV float heavy(const pick_job *job, double sum)
{
	return (float)((double)job->xtc_threshold * sum);
}

/* XTC among all tokens: removes the heavy ones but the last of them, which becomes the greatest.
 * Grid: jobs. */
KERNEL pick_xtc(pick_args a)
{
	keep_shared *s = &shared_memory<keep_shared>();
	const pick_job *job = &a.jobs[blockIdx.x];
	pick_state *state = &a.state[blockIdx.x];
	float *z = a.z + (size_t)blockIdx.x * a.n_vocab;
	float *most = a.most + (size_t)blockIdx.x * a.chunks;
	const uint64_t *dist = a.dist + (size_t)blockIdx.x * a.n_vocab;
	float z_max = z[state->top];

	if (!(job->flags & PICK_XTC) || job->flags & PICK_FILTERS || z_max == -F_INFINITY)
		return;
	double sum = block_exp_sum(a.sums + (size_t)blockIdx.x * a.chunks, a.chunks, s->partial);
	keep_filtered(s, &a, blockIdx.x, z_max, 0, 1, heavy(job, sum), 0);
	unsigned n = s->n;
	for (unsigned i = threadIdx.x; i + 1 < n; i += PICK_THREADS)
		z[(uint32_t)dist[i]] = -F_INFINITY;
	__syncthreads();
	for (unsigned i = threadIdx.x; i + 1 < n; i += PICK_THREADS) {
		unsigned chunk = (uint32_t)dist[i] / PICK_CHUNK, first = chunk * PICK_CHUNK;
		float greatest = -F_INFINITY;

		for (unsigned j = first; j < first + PICK_CHUNK && j < a.n_vocab; j++)
			greatest = f_max(z[j], greatest);
		most[chunk] = greatest;
	}
	if (threadIdx.x == 0)
		state->top = (uint32_t)dist[n - 1];
}

/* z + G of a token that has drawn this. */
DEV double score_of(float z, uint32_t draw)
{
	return (double)z + sampler_gumbel_of(rand_uniform_of(draw));
}

DEV uint32_t draw_of(const pick_job *job, uint32_t token)
{
	uint32_t bits[4];

	rand_philox(job->seed, RAND_GUMBEL, job->position, token, bits);
	return bits[0] >> 8;
}

/* Enters a token if it can win against `bound`, a score that is known to be reached. least: no
 * smaller draw can, as the caller knows. */
DEV void enter_race(const pick_job *job, uint32_t token, float z, uint32_t least, pick_score *best)
{
	uint32_t draw = draw_of(job, token);

	if (draw < least || z == -F_INFINITY)
		return;
	pick_score one = {score_of(z, draw), token};
	if (pick_before(one, *best))
		*best = one;
}

/* The score of one token, for all threads. */
DEV double block_bound(const pick_job *job, uint32_t token, float z, double *shared)
{
	__syncthreads();
	if (threadIdx.x == 0)
		*shared = score_of(z, draw_of(job, token));
	__syncthreads();
	return *shared;
}

/* The token that wins among a tile of the vocabulary. A token is looked at only if its chunk's
 * greatest z could win with its draw against the greatest of all. Grid: (tiles, jobs). */
struct pick_race_shared {
	pick_score warp[PICK_THREADS / 32];
	double bound;
};

KERNEL pick_race(pick_args a)
{
	pick_race_shared *s = &shared_memory<pick_race_shared>();
	const pick_job *job = &a.jobs[blockIdx.y];
	const float *z = a.z + (size_t)blockIdx.y * a.n_vocab;
	const float *most = a.most + (size_t)blockIdx.y * a.chunks;
	uint32_t top = a.state[blockIdx.y].top;
	float z_max = z[top];
	pick_lane at = lane_of_thread();

	if (!(job->flags & PICK_DRAWS) || job->flags & PICK_FILTERS || z_max == -F_INFINITY)
		return;
	double margin = sampler_margin((double)z_max);
	double bound = block_bound(job, top, z_max, &s->bound);
	pick_score best = {bound, top};
	for (unsigned c = at.half; c < PICK_TILE_CHUNKS; c += PICK_THREADS / 16) {
		unsigned chunk = blockIdx.x * PICK_TILE_CHUNKS + c;

		if (chunk >= a.chunks || (double)most[chunk] + SAMPLER_GUMBEL_MAX < bound)
			continue;
		uint32_t least = sampler_least_draw((double)most[chunk] - bound + margin);
		for (unsigned i = 0; i < PICK_CHUNK / 16; i++) {
			unsigned token = chunk * PICK_CHUNK + 16 * i + at.lane;

			if (token < a.n_vocab)
				enter_race(job, token, z[token], least, &best);
		}
	}
	best = block_first(best, s->warp);
	if (threadIdx.x == 0)
		a.race[blockIdx.y * a.tiles + blockIdx.x] = best;
}

/* The winner of all tiles, or the greatest. */
DEV uint32_t end_race(keep_shared *s, const pick_args *a, unsigned job, uint32_t top)
{
	const pick_score *race = a->race + job * a->tiles;
	pick_score best = {-1.0 / 0.0, 0xffffffffu};

	if (!(a->jobs[job].flags & PICK_DRAWS))
		return top;
	for (unsigned i = threadIdx.x; i < a->tiles; i += PICK_THREADS)
		if (pick_before(race[i], best))
			best = race[i];
	return block_first(best, s->warp).token;
}

/* The winner among the kept tokens. */
DEV uint32_t race_kept(keep_shared *s, const pick_job *job, const uint64_t *dist, unsigned n)
{
	uint32_t first = (uint32_t)dist[0];
	float z = z_of(dist[0]);
	double margin = sampler_margin((double)z), bound = block_bound(job, first, z, s->partial);
	pick_score best = {bound, first};

	for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS) {
		float mine = z_of(dist[i]);

		if ((double)mine + SAMPLER_GUMBEL_MAX >= bound)
			enter_race(job, (uint32_t)dist[i], mine,
				sampler_least_draw((double)mine - bound + margin), &best);
	}
	return block_first(best, s->warp).token;
}

/* Lists the first n of the kept tokens, whose weights have this sum. */
DEV void list_best(
	pick_out *out, const uint64_t *dist, unsigned n_kept, unsigned n, float z_max, double sum)
{
	n = n < n_kept ? n : n_kept;
	if (threadIdx.x < n) {
		uint64_t key = dist[threadIdx.x];

		out->best[threadIdx.x].token = (int32_t)(uint32_t)key;
		out->best[threadIdx.x].p = (float)((double)exp32(z_of(key) - z_max) / sum);
	}
	if (threadIdx.x == 0)
		out->n_best = n;
}

/* What is found of a token's choice. */
struct pick_end {
	uint32_t token;
	double sum; /* of the distribution that it was chosen from */
};

DEV pick_end end_filtered(
	keep_shared *s, const pick_args *a, unsigned at, float z_max, double total)
{
	const pick_job *job = &a->jobs[at];
	const uint64_t *dist = a->dist + (size_t)at * a->n_vocab;
	const keep_rule all = {0, 1, 0, 0, false, false};

	keep_filtered(s, a, at, z_max, job->top_k, job->top_p, job->min_p, total);
	double sum = s->sum;
	unsigned n = s->n;
	if (job->flags & PICK_XTC) {
		unsigned heavies = count_heavy(s, dist, n, z_max, heavy(job, sum));

		if (heavies > 1) {
			dist += heavies - 1;
			n -= heavies - 1;
			begin_taking(s);
			take(s, dist, n, z_max, &all);
			sum = s->sum;
		}
	}
	pick_end end = {race_kept(s, job, dist, n), sum};
	list_best(job->out, dist, n, job->n_best, z_max, sum);
	return end;
}

DEV pick_end end_unfiltered(
	keep_shared *s, const pick_args *a, unsigned at, uint32_t top, float z_max, double total)
{
	const pick_job *job = &a->jobs[at];
	pick_end end = {end_race(s, a, at, top), total};

	if (job->n_best > 0) {
		keep_filtered(s, a, at, z_max, job->n_best, 1, 0, 0);
		list_best(job->out, a->dist + (size_t)at * a->n_vocab, s->n, job->n_best, z_max,
			total);
	} else if (threadIdx.x == 0) {
		job->out->n_best = 0;
	}
	return end;
}

/* The token, its probability, and the likeliest tokens. */
DEV void end_choice(keep_shared *s, const pick_args *a, unsigned at, double total)
{
	const pick_job *job = &a->jobs[at];
	const float *z = a->z + (size_t)at * a->n_vocab;
	uint32_t top = a->state[at].top;
	float z_max = z[top];
	bool none = z_max == -F_INFINITY, filtered = job->flags & PICK_FILTERS;
	pick_end end = {0, 0};

	if (!none)
		end = filtered ? end_filtered(s, a, at, z_max, total)
			       : end_unfiltered(s, a, at, top, z_max, total);
	if (threadIdx.x > 0)
		return;
	pick_out *out = job->out;
	out->none = none;
	out->token = (int32_t)end.token;
	out->logit = job->logits[end.token];
	if (none) {
		out->n_best = 0;
		out->p = 1;
	} else {
		out->p = filtered || job->flags & PICK_P
				 ? (float)((double)exp32(z[end.token] - z_max) / end.sum)
				 : 0;
	}
}

/* Log probabilities. */
DEV void end_score(keep_shared *s, const pick_args *a, unsigned at, double total)
{
	const pick_job *job = &a->jobs[at];
	const uint64_t *dist = a->dist + (size_t)at * a->n_vocab;
	const float *z = a->z + (size_t)at * a->n_vocab;
	const keep_rule rule = {job->n_top, 1, 0, 0, false, true};
	float z_max = z[a->state[at].top];
	double log_sum = (double)z_max + sampler_log(total);

	if (job->n_top > 0) {
		keep_by(s, a, at, z_max, &rule);
		if (threadIdx.x < job->n_top) {
			uint32_t token = (uint32_t)dist[threadIdx.x];

			job->out->top[threadIdx.x].token = (int32_t)token;
			job->out->top[threadIdx.x].logprob = sampler_logprob_of(z[token], log_sum);
		}
	}
	if (threadIdx.x == 0) {
		job->out->log_sum = log_sum;
		job->out->logit = job->logits[job->next];
	}
}

/* Grid: jobs. */
KERNEL pick_finish(pick_args a)
{
	keep_shared *s = &shared_memory<keep_shared>();
	const pick_job *job = &a.jobs[blockIdx.x];
	double total = 0;

	if (job->flags & (PICK_SUM_FIRST | PICK_SUM_LAST))
		total = block_exp_sum(a.sums + (size_t)blockIdx.x * a.chunks, a.chunks, s->partial);
	__syncthreads();
	if (job->flags & PICK_CHOOSES)
		end_choice(s, &a, blockIdx.x, total);
	else if (job->flags & PICK_SCORES)
		end_score(s, &a, blockIdx.x, total);
}
