/*
 * Picks of tokens (kernels/sampler.h) as jobs on rows of logits. A row whose token is wanted is one
 * job; its log probabilities are another, because they come from the unadjusted logits. Each kernel
 * runs for all jobs of a wave, and leaves out those that do not need it. What the order of sums
 * allows is done by all blocks, a tile of tokens each; what is left takes a block per job.
 */
#pragma once

#include "kernels/gpu/kernels/choice.cuh"

#include "kernels/logits_hash.h"

extern "C" {
#include "kernels/cpu/sampler_changes.h"
#include "kernels/pick.h"
#include "shared/base/rand.h"
}

static const unsigned PICK_THREADS = 256, PICK_CHUNK = 64; /* tokens: SAMPLE_CHUNK */
/* Chunks, and tokens, of a block. */
static const unsigned PICK_TILE_CHUNKS = 64, PICK_TILE = PICK_TILE_CHUNKS * PICK_CHUNK;

enum pick_flags {
	PICK_CHOOSES = 1, /* a token is wanted */
	PICK_SCORES = 2, /* log probabilities are wanted */
	PICK_HASHES = 4,
	PICK_LOOKS = 2048, /* whether all are finite, nothing else */
	PICK_ADJUSTS = 8, /* there are changes of logits, or tokens that are not allowed */
	/* only with PICK_CHOOSES: */
	PICK_DRAWS = 16, /* not greedy */
	PICK_SIGMA = 32, /* top-n-sigma */
	PICK_FILTERS = 64, /* top-k, top-p or min-p */
	PICK_XTC = 128, /* acts at this position */
	PICK_P = 256, /* p is wanted */
	/* the sum over the vocabulary is needed: before XTC, and at the end */
	PICK_SUM_FIRST = 512,
	PICK_SUM_LAST = 1024,
};

struct pick_change {
	uint32_t token;
	float operand;
};

/* What a job gives, in memory that the host sees. */
struct pick_out {
	int32_t token;
	float p;
	float logit; /* unadjusted, of the token, or of the job's `next` */
	uint32_t n_best;
	double log_sum;
	uint64_t hash;
	uint32_t finite, none;
	struct token_prob best[PICK_BEST_MAX];
	struct token_logprob top[LIMIT_TOP_LOGPROBS];
};

struct pick_job {
	const float *logits;
	uint32_t flags;
	float divisor; /* the temperature; 1: greedy */
	float top_p, min_p, n_sigma, xtc_threshold;
	uint32_t top_k; /* 0: all */
	uint32_t n_best, n_top;
	int32_t next;
	uint64_t seed, position;
	/* [SAMPLER_CHANGES][n_changes], kind by kind; as sampler_changes gives them */
	const pick_change *changes;
	uint32_t n_changes[SAMPLER_CHANGES];
	const uint64_t *allowed; /* or NULL */
	pick_out *out;
};

/* The best of a draw: z + G. */
struct pick_score {
	double score;
	uint32_t token;
};

struct pick_state {
	uint32_t top; /* of the greatest z, ties to the smaller id */
	double far, n; /* top-n-sigma: tokens with (n d)^2 <= far stay */
};

/* Scratch of the jobs of a wave. chunks and tiles: of n_vocab. */
struct pick_args {
	const pick_job *jobs;
	uint32_t n_vocab, chunks, tiles;
	float *z; /* [jobs][n_vocab] */
	float *most; /* [jobs][chunks] the greatest z */
	float *sums; /* [jobs][chunks] of exp(z - z_max) */
	uint64_t *dist; /* [jobs][n_vocab] keys (pick_keep.cuh) */
	pick_score *race; /* [jobs][tiles] */
	uint32_t *bad; /* [jobs][tiles] not zero: a logit is not finite */
	pick_state *state; /* [jobs] */
};

/* The place of a thread in a tile: half a warp has a chunk, and a thread every 16th token of it. */
struct pick_lane {
	unsigned lane, half; /* lane: 0..15; half: 0..PICK_THREADS / 16 - 1 */
};

DEV pick_lane lane_of_thread()
{
	return {threadIdx.x % 16, threadIdx.x / 16};
}

/* The greatest over half a warp. */
DEV float half_greatest(float x)
{
	for (unsigned d = 8; d > 0; d /= 2)
		x = f_max(x, __shfl_xor_sync(WARP_ALL, x, d));
	return x;
}

/* Sets z to value(token) for each token of the block's tile, and notes the greatest of each chunk.
 * Grid: (tiles, jobs). */
template <class F> DEV void set_tile(const pick_args *a, F value)
{
	pick_lane at = lane_of_thread();
	float *z = a->z + (size_t)blockIdx.y * a->n_vocab;

	for (unsigned c = at.half; c < PICK_TILE_CHUNKS; c += PICK_THREADS / 16) {
		unsigned chunk = blockIdx.x * PICK_TILE_CHUNKS + c;
		float most = -F_INFINITY;

		for (unsigned i = 0; i < PICK_CHUNK / 16; i++) {
			unsigned token = chunk * PICK_CHUNK + 16 * i + at.lane;
			if (token >= a->n_vocab)
				continue;
			z[token] = value(token);
			most = f_max(z[token], most);
		}
		most = half_greatest(most);
		if (at.lane == 0 && chunk < a->chunks)
			a->most[(size_t)blockIdx.y * a->chunks + chunk] = most;
	}
}

/* Whether a comes before b: by falling score, then by rising id. */
DEV bool pick_before(pick_score a, pick_score b)
{
	return a.score > b.score || (a.score == b.score && a.token < b.token);
}

/* The first of all threads' scores by pick_before. warp: [PICK_THREADS / 32] shared scratch. */
DEV pick_score block_first(pick_score mine, pick_score *warp)
{
	for (unsigned d = 16; d > 0; d /= 2) {
		pick_score other;

		other.score = __shfl_xor_sync(WARP_ALL, mine.score, d);
		other.token = __shfl_xor_sync(WARP_ALL, mine.token, d);
		if (pick_before(other, mine))
			mine = other;
	}
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		warp[threadIdx.x / 32] = mine;
	__syncthreads();
	mine = warp[0];
	for (unsigned w = 1; w < PICK_THREADS / 32; w++)
		if (pick_before(warp[w], mine))
			mine = warp[w];
	return mine;
}

/* The sum over the vocabulary from its chunks' sums (kernels/numerics.md, EXP SUM), for all threads.
 * partial: [64] shared scratch. */
DEV double block_exp_sum(const float *sums, unsigned chunks, double *partial)
{
	unsigned tid = threadIdx.x;
	double sum = 0;

	if (tid < 64) {
		for (unsigned c = tid; c < chunks; c += 64)
			sum = sum + (double)sums[c];
		partial[tid] = sum;
	}
	__syncthreads();
	if (tid < 32) {
		sum = partial[tid] + partial[tid + 32];
		for (unsigned d = 16; d > 0; d /= 2)
			sum = sum + __shfl_xor_sync(WARP_ALL, sum, d);
		if (tid == 0)
			partial[0] = sum;
	}
	__syncthreads();
	return partial[0];
}
