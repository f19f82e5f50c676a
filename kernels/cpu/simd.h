/*
 * The CPU's primitives: one table of functions for each instruction set. All tables give the same bits, which
 * numerics.md defines; tests compare them with each other and with plain code.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/tensor.h"

/* Positions that attention takes at once, positions of an attention job, and rows of one. */
#define ATTENTION_CHUNK 64
#define ATTENTION_SPLIT 256
#define ATTENTION_ROWS 128

/* One query token of an attention job. */
struct attention_query {
	const float *q; /* [n_heads][k_dim], heads q_stride floats apart */
	uint32_t first,
		last; /* of job->cells: first..last-1 are attended to; none when first >= last */
};

/* What attention keeps of some cells for rows of queries: the weighted sum of their values, not yet divided by the sum
 * of the weights, both relative to the greatest score. Starts as most = -inf, sum = 0, out = 0; with a sink most is its
 * score and sum 1: gpt-oss's learned score per head takes weight and has no value (after Xiao et al., arXiv 2309.17453,
 * section 3.3, whose sinks are tokens of their own). */
struct attention_state {
	float *out; /* [rows][v_dim], rows out_stride floats apart */
	size_t out_stride;
	float *most, *sum; /* [rows] */
};

/* Attention of some query tokens, each with the query heads that share one KV head, over one split of positions. Row
 * token * n_heads + head; any tokens and heads may be together, a row's bits are its own. */
struct attention_job {
	uint32_t
		n_cells; /* <= ATTENTION_SPLIT; cells[0] is the one of the split's first position */
	uint32_t n_ahead; /* entries of cells behind them that will probably be the next job's */
	const uint32_t *
		cells; /* [n_cells + n_ahead], read between the first and the last that a query covers, and where n_ahead does */
	enum kv_type kv_type;
	const void *k, *v; /* cell c's vector of this layer and KV head at k + c * k_cell_bytes */
	size_t k_cell_bytes, v_cell_bytes;
	bool k_turned; /* the keys lie turned (KV_TURN), and k_cell_bytes is kv_vector_bytes of one */
	bool v_paired; /* the values lie paired, likewise; of blocks only */
	uint32_t k_dim, v_dim; /* v may be the first v_dim values of k */
	uint32_t n_tokens, n_heads; /* their product: 1..ATTENTION_ROWS */
	const struct attention_query *queries; /* [n_tokens] */
	size_t q_stride;
	bool q_kept; /* the job before this one with this scratch had the same vectors of queries, n_heads, types and dimensions */
	float scale; /* of the scores, 1 / sqrt(head dimension) mostly */
	struct attention_state
		part; /* the result, out_stride == v_dim; open for tokens without cells */
	float *scratch; /* kernels->attention_scratch(rows, k_dim, v_dim) floats */
};

/* One token of one value head of a gated delta net (Yang, Kautz, Hatamizadeh, arXiv 2412.06464, eq. 10), on `columns`
 * columns of the head's state S [d_k][d_v]; a column depends on no other. */
struct delta_step {
	float *state; /* [d_k][columns], rows stride floats apart; updated */
	size_t stride;
	uint32_t d_k, columns;
	const float *q, *k; /* [d_k] normalised, q scaled */
	const float *v; /* [columns] */
	float decay, rate; /* of kernels->delta_gates */
	float *out; /* [columns], or NULL: the state is wanted alone, and q is not read */
};

/* Tokens of a vocabulary that the sampler looks at together. */
#define SAMPLE_CHUNK 64

/*
 * One backend. All functions are pure: they touch only their arguments, allocate nothing and may run on many
 * threads at once. Dimensions are validated when a model is loaded; kernels assert.
 */
struct kernels {
	const char *name; /* "scalar", "avx2", "avx512", "reference" */
	bool (*supported)(void); /* by this CPU */

	/* x[cols] -> out[cols / 32]; cols % 32 == 0. */
	void (*quantise_q8)(const float *x, uint32_t cols, struct q8_block *out);

	/* Rows first..last-1 of w times n activations: y[t][r] for all t < n. y[t] points to w->rows floats.
	 * A weight row comes from memory once for every 64 tokens. Any first and last give the same bits;
	 * multiples of 16 rows are fastest. */
	void (*matmul)(const struct matrix *w, uint32_t first, uint32_t last,
		const struct activation *x, uint32_t n, float *const *y);
	bool matmul_f32; /* it reads x->f32, whatever the weights are */

	/* out[cols] = row of w as float32 (embedding look-up). */
	void (*dequantise_row)(const struct matrix *w, uint32_t row, float *out);

	/* RMSNorm (Zhang, Sennrich, arXiv 1910.07467, eq. 4):
	 * y[i] = x[i] * (1 / sqrt(ss / n + eps)) * w[i], ss = NORM SUM of x*x; y may be x. The root and division are
	 * correctly rounded float32. */
	void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);

	/* LayerNorm (Ba, Kiros, Hinton, arXiv 1607.06450):
	 * mean = (NORM SUM of x * 1) / n; d[i] = x[i] - mean; y[i] = fma(d[i] * (1 / sqrt(ss / n + eps)), w[i], b[i]), ss =
	 * NORM SUM of d*d; y may be x, and holds d in between. */
	void (*layer_norm)(
		const float *x, const float *w, const float *b, float eps, uint32_t n, float *y);

	/* Rotary position embedding (Su et al., arXiv 2104.09864, section 3.4). Rotates pairs of a head in place.
	 * cos_sin[2 * i], [2 * i + 1] for pair i < n_rot / 2; neox: pair is (i, i + n_rot / 2), else (2i, 2i + 1).
	 * a' = fma(a, c, -(b * s)); b' = fma(a, s, b * c). */
	void (*rope)(float *head, const float *cos_sin, uint32_t n_rot, bool neox);

	/* SwiGLU with beta = 1 (Shazeer, arXiv 2002.05202, eq. 6):
	 * out[i] = g[i] * (1 / (1 + exp(-g[i]))) * u[i], multiplied left to right; out may be g. */
	void (*silu_mul)(const float *g, const float *u, uint32_t n, float *out);

	/* gpt-oss's form of it (OpenAI, arXiv 2508.10925: clamped, and u has one added), with the factor that
	 * makes x * sigmoid nearly a GELU (Hendrycks, Gimpel, arXiv 1606.08415): g' = min(g[i], 7), u' =
	 * min(max(u[i], -7), 7); out[i] = g' * (1 / (1 + exp(-(1.702 * g')))) * (u' + 1), multiplied left to right;
	 * out may be g. A NaN stays one. */
	void (*swiglu_oai)(const float *g, const float *u, uint32_t n, float *out);

	/* In place: 1 / (1 + exp(-x[i])). */
	void (*sigmoid)(float *x, uint32_t n);

	/* y[i] = y[i] + x[i]. */
	void (*add)(float *y, const float *x, uint32_t n);

	/* y[i] = fma(a, x[i], y[i]). */
	void (*axpy)(float *y, float a, const float *x, uint32_t n);

	/* The first of the greatest of x, n > 0; UINT32_MAX when not all are finite. */
	uint32_t (*greatest)(const float *x, uint32_t n);

	/* z[i] = sane(sane(x[i]) / divisor), divisor > 0, where sane makes a NaN -inf and +inf the largest float; most[c] is
	 * the greatest of z[SAMPLE_CHUNK * c ..] (of both zeros either). z may be x. Returns whether all of x were finite. */
	bool (*scale_logits)(const float *x, uint32_t n, float divisor, float *z, float *most);

	/* sums[c] = LANES sum of exp(z[i] - less) * 1 over the SAMPLE_CHUNK tokens (or what is left) from SAMPLE_CHUNK * c on. */
	void (*exp_sums)(const float *z, uint32_t n, float less, float *sums);

	/* out[i] = the top 24 bits of word 0 of rand_philox(seed, stream, position, first + i)
	 * (shared/base/rand.h). #skip services/policy-controller/yield/yield.h 0 */
	void (*draws)(uint64_t seed, uint32_t stream, uint64_t position, uint32_t first,
		uint32_t out[SAMPLE_CHUNK]);

	/* In place; max, then e_i = exp(x_i - max), sum by LANES (of e_i * 1), then e_i * (1 / sum). */
	void (*softmax)(float *x, uint32_t n);

	/* out[i] = x[i] * (1 / (1 + exp(-g[i]))). */
	void (*sigmoid_mul)(const float *g, const float *x, uint32_t n, float *out);

	/* A causal convolution over time, each channel by itself: s = +0, then s = fma(rows[t][i], w[t][i], s) for
	 * t = 0..taps-1 (rows oldest first; w [taps][n]); out[i] = s * (1 / (1 + exp(-s))). */
	void (*conv_silu)(
		const float *const *rows, const float *w, uint32_t taps, uint32_t n, float *out);

	/* y[i] = (x[i] * (1 / sqrt(ss + eps))) * scale, ss = NORM SUM of x*x; y may be x. */
	void (*l2_norm)(const float *x, float eps, float scale, uint32_t n, float *y);

	/* By value head: decay = exp(a * softplus(alpha + dt)), rate = 1 / (1 + exp(-beta)). softplus(x) is x beyond
	 * 20; else with e = exp(x), u = 1 + e: e where u is 1, else log(u) * (e / (u - 1)). */
	void (*delta_gates)(const float *a, const float *dt, const float *alpha, const float *beta,
		uint32_t n, float *decay, float *rate);

	/* By column j, i ascending: four partial sums r[i % 4] = fma(S[i][j], k[i], r[i % 4]) from +0, folded as
	 * m = (r0 + r2) + (r1 + r3); d = (v[j] - decay * m) * rate; S[i][j] = fma(k[i], d, S[i][j] * decay);
	 * out[j] = four partial sums of the new S[i][j] * q[i], in the same way. */
	void (*delta_step)(const struct delta_step *step);

	/* With the softmax's maximum and sum kept up as scores come (Milakov, Gimelshein, arXiv 1805.02867, algorithm 3)
	 * and the output with them, so that scores are never all in memory (FlashAttention: Dao et al., arXiv 2205.14135,
	 * and with the division left to the end, Dao, arXiv 2307.08691, algorithm 1). In splits of ATTENTION_SPLIT
	 * positions (0.., SPLIT.., ...), so that the bits depend on the positions attended to and on nothing else. A split,
	 * from most = -inf, sum = 0, out = 0, is taken in chunks of ATTENTION_CHUNK positions, counted like the splits
	 * (with a sliding window the first chunk is a part of one). In a chunk a score is s * scale after s = +0, s =
	 * fma(q[d], k[d], s) for ascending d; most' = max(most, scores), f = exp(most - most'), p = exp(score - most'), sum
	 * = fma(sum, f, LANES sum of p * 1), out[d] = out[d] * f, then for each cell in order out[d] = fma(p, v[d],
	 * out[d]). Stored keys and values are widened exactly.
	 *
	 * Of blocks both products are of integers, which need no order and go at twice the rate of float32's. A score is s *
	 * scale after s = +0, s = fma(d * e, the block's sum of products, s) for ascending blocks, of the key's scale d and
	 * integers and the query's: of KV_Q8_0 those of quantise_q8; of KV_Q16_0 e = a / KV_Q16_QUERY_MOST and x *
	 * (KV_Q16_QUERY_MOST / a) rounded to nearest even, with the greatest |x| of the block as a (all 0 where it is less than
	 * 2^-110), a short block as if zeros followed. Weights take the scales of the values with them. Their unit is u = max(g
	 * * (1 / KV_WEIGHT_MOST), h * (1 / KV_Q16_WEIGHTS_MOST)): over the chunk's cells, of p times the cell's greatest scale,
	 * or 0 where p is, g is the maximum, at least 2^-100, and h the LANES sum from the chunk's first position on, or 0 for
	 * KV_Q8_0. A cell's integer for a block is (p * (1 / u)) * d rounded to nearest even, and out[d] = fma(the sum of these
	 * times the values' integers, u, out[d] * f). A row in which a value whose scale is infinite or NaN has a p that is not
	 * 0 is NaN; where p is 0, so is the integer. (Zhang et al., SageAttention, arXiv 2410.02367, multiply queries and keys
	 * of 8 bits, and find these too few for weights and values; here weights have up to 15.) */
	void (*attention)(const struct attention_job *job);
	size_t (*attention_scratch)(uint32_t rows, uint32_t k_dim, uint32_t v_dim); /* floats */

	/* Parts of the positions are computed apart and joined by their maxima and sums, as Flash-Decoding does (Dao,
	 * Haziza, Massa, Sizov, 2023, crfm.stanford.edu/2023/10/12/flashdecoding.html); there the number of splits follows
	 * the machine, here never. Takes the next split, in ascending positions, into what those before it gave, by row:
	 * most' = max(most, part's), a = exp(most - most'), b = exp(part's most - most'), sum = fma(part's sum, b, sum *
	 * a), out[d] = fma(part's out[d], b, out[d] * a). */
	void (*attention_join)(const struct attention_state *into,
		const struct attention_state *part, uint32_t rows, uint32_t v_dim);

	/* After the last: out[d] = out[d] * (1 / sum). */
	void (*attention_finish)(
		const struct attention_state *state, uint32_t rows, uint32_t v_dim);

	/* float32 -> the KV type, kv_vector_bytes(type, n) of it. Float16 is rounded to nearest even. KV_Q8_0: a block is
	 * quantised as activations are (a short one as if zeros followed), its d rounded to float16 afterwards. KV_Q16_0: d is
	 * the greatest |x| / KV_Q16_MOST, rounded up to bfloat16, and the integers are x * (1 / d) rounded to nearest even;
	 * below 2^-110 all are 0, and with an infinity or NaN among x too and d infinite. */
	void (*kv_store)(const float *x, uint32_t n, enum kv_type type, void *out);

	/* The same values as the vector of a cell among turned or paired ones (KV_TURN), those of cell 0 and on at `cells`.
	 * Only its own bytes are written: threads may store to other cells meanwhile. Paired: types of blocks only. */
	void (*kv_store_turned)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
	void (*kv_store_paired)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
};
