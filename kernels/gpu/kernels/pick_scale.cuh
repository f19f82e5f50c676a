/* From logits to z: adjustments, temperature, the greatest of each chunk and of all. */
#pragma once

#include "kernels/gpu/kernels/pick_job.cuh"

struct pick_scale_shared {
	uint32_t bad;
};

DEV bool is_finite(float x)
{
	return (bits_of_float(x) & 0x7f800000u) != 0x7f800000u;
}

/* z = logits / divisor. Where logits are adjusted this runs twice: before the changes, with a
 * divisor of 1, and (again) behind them, for tokens that are not allowed and for the divisor. Grid:
 * (tiles, jobs). */
KERNEL pick_scale(pick_args a, bool again)
{
	pick_scale_shared *s = &shared_memory<pick_scale_shared>();
	const pick_job *job = &a.jobs[blockIdx.y];
	bool adjusts = job->flags & PICK_ADJUSTS;
	const float *from =
		again ? a.z + (size_t)blockIdx.y * a.n_vocab : (const float *)job->logits;
	float divisor = adjusts && !again ? 1 : job->divisor;
	uint32_t bad = 0;

	if (again && !adjusts)
		return;
	if (threadIdx.x == 0)
		s->bad = 0;
	__syncthreads();
	set_tile(&a, [&](unsigned token) {
		float x = from[token];

		if (again && job->allowed && !(job->allowed[token / 64] >> token % 64 & 1))
			x = -F_INFINITY;
		bad |= !is_finite(x);
		return sampler_sane(sampler_sane(x) / divisor);
	});
	if (again)
		return;
	if (bad)
		s->bad = 1;
	__syncthreads();
	if (threadIdx.x == 0)
		a.bad[blockIdx.y * a.tiles + blockIdx.x] = s->bad;
}

/* The first of a token's biases makes them all. */
DEV void apply_bias(const pick_change *of, unsigned n, unsigned i, float *z)
{
	for (unsigned j = 0; j < i; j++)
		if (of[j].token == of[i].token)
			return;
	float x = z[of[i].token];
	for (unsigned j = i; j < n; j++)
		if (of[j].token == of[i].token)
			x = sampler_changed(CHANGE_BIAS, x, of[j].operand);
	z[of[i].token] = x;
}

/* Makes the changes of logits, kind by kind. Grid: jobs. */
KERNEL pick_adjust(pick_args a)
{
	const pick_job *job = &a.jobs[blockIdx.x];
	const pick_change *of = job->changes;
	float *z = a.z + (size_t)blockIdx.x * a.n_vocab;

	if (!(job->flags & PICK_ADJUSTS))
		return;
	for (unsigned what = 0; what < SAMPLER_CHANGES; what++) {
		unsigned n = job->n_changes[what];

		for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS) {
			if (what == CHANGE_BIAS)
				apply_bias(of, n, i, z);
			else
				z[of[i].token] = sampler_changed(
					(enum sampler_change)what, z[of[i].token], of[i].operand);
		}
		of += n;
		__syncthreads();
	}
}

struct pick_top_shared {
	pick_score warp[PICK_THREADS / 32];
	uint32_t bad;
};

/* The place of the greatest of x[0..n-1], ties to the smaller index. */
DEV unsigned block_top(pick_score *warp, const float *x, unsigned n)
{
	pick_score best = {-1.0 / 0.0, 0xffffffffu};

	for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS) {
		pick_score one = {(double)x[i], i};

		if (pick_before(one, best))
			best = one;
	}
	return block_first(best, warp).token;
}

/* Finds the greatest z, and whether all logits are finite. Grid: jobs. */
KERNEL pick_top(pick_args a)
{
	pick_top_shared *s = &shared_memory<pick_top_shared>();
	const pick_job *job = &a.jobs[blockIdx.x];
	const float *most = a.most + (size_t)blockIdx.x * a.chunks;

	if (threadIdx.x == 0)
		s->bad = 0;
	__syncthreads();
	for (unsigned i = threadIdx.x; i < a.tiles; i += PICK_THREADS)
		if (a.bad[blockIdx.x * a.tiles + i])
			s->bad = 1;
	unsigned first = block_top(s->warp, most, a.chunks) * PICK_CHUNK;
	unsigned n = a.n_vocab - first < PICK_CHUNK ? a.n_vocab - first : PICK_CHUNK;
	unsigned at = block_top(s->warp, a.z + (size_t)blockIdx.x * a.n_vocab + first, n);

	if (threadIdx.x == 0) {
		a.state[blockIdx.x].top = first + at;
		job->out->finite = !s->bad;
	}
}

/* The chunks' sums of exp(z - z_max), for jobs with this flag. Grid: (tiles, jobs). */
KERNEL pick_sums(pick_args a, uint32_t flag)
{
	const pick_job *job = &a.jobs[blockIdx.y];
	const float *z = a.z + (size_t)blockIdx.y * a.n_vocab;
	pick_lane at = lane_of_thread();

	if (!(job->flags & flag))
		return;
	float z_max = z[a.state[blockIdx.y].top];
	for (unsigned c = at.half; c < PICK_TILE_CHUNKS; c += PICK_THREADS / 16) {
		unsigned chunk = blockIdx.x * PICK_TILE_CHUNKS + c;
		float sum = 0;

		for (unsigned i = 0; i < PICK_CHUNK / 16; i++) {
			unsigned token = chunk * PICK_CHUNK + 16 * i + at.lane;

			if (token < a.n_vocab)
				sum = f_fma(exp32(z[token] - z_max), 1.0f, sum);
		}
		sum = lanes_fold(sum);
		if (at.lane == 0 && chunk < a.chunks)
			a.sums[(size_t)blockIdx.y * a.chunks + chunk] = sum;
	}
}

/* logits_hash. A block loads, one thread goes on. Grid: jobs. */
struct pick_hash_shared {
	uint32_t word[2][PICK_TILE];
};

KERNEL pick_hash(pick_args a)
{
	pick_hash_shared *s = &shared_memory<pick_hash_shared>();
	const pick_job *job = &a.jobs[blockIdx.x];
	uint64_t h = LOGITS_HASH_FIRST;

	if (!(job->flags & PICK_HASHES))
		return;
	for (unsigned at = 0; at < a.n_vocab; at += PICK_TILE) {
		unsigned n = a.n_vocab - at < PICK_TILE ? a.n_vocab - at : PICK_TILE;
		uint32_t *word = s->word[at / PICK_TILE % 2];

		for (unsigned i = threadIdx.x; i < n; i += PICK_THREADS)
			word[i] = bits_of_float(job->logits[at + i]);
		if (threadIdx.x == 0 && n % 2)
			word[n] = 0;
		__syncthreads();
		for (unsigned i = 0; threadIdx.x == 0 && i < n; i += 2)
			h = logits_hash_next(h, (uint64_t)word[i + 1] << 32 | word[i]);
	}
	if (threadIdx.x == 0)
		job->out->hash = h;
}
