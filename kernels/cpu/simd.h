/*
 * The CPU's primitives: one table of functions for each instruction set. All tables give the same
 * bits, which numerics.md defines; tests compare them with each other and with plain code.
 */
#pragma once

#include "kernels/kv_format.h"
#include "kernels/tensor.h"

/* Positions in a chunk of attention, positions in an attention job, and rows in a job. */
#define ATTENTION_CHUNK 64
#define ATTENTION_SPLIT 256
#define ATTENTION_ROWS 128

/* One query token of an attention job. */
struct attention_query {
	const float *q; /* [n_heads][k_dim]; heads are q_stride floats apart */
	uint32_t first,
		last; /* it attends to job->cells first..last-1; to none when first >= last */
};

/* The state of attention over some positions, for rows of queries: the weighted sum of the values,
 * not yet divided by the sum of the weights. Both are relative to the greatest score. It starts as
 * most = -inf, sum = 0, out = 0. With a sink, most starts as its score and sum as 1: gpt-oss's
 * learned score per head takes weight and has no value (after Xiao et al., arXiv 2309.17453,
 * section 3.3, whose sinks are tokens). */
struct attention_state {
	float *out; /* [rows][v_dim]; rows are out_stride floats apart */
	size_t out_stride;
	float *most, *sum; /* [rows] */
};

/* Attention of some query tokens over one split of positions, for the query heads that share one KV
 * head. A row is token * n_heads + head. Tokens and heads may be combined in any way: a row's bits
 * do not depend on the other rows. */
struct attention_job {
	uint32_t n_cells; /* <= ATTENTION_SPLIT; cells[0] belongs to the split's first position */
	uint32_t n_ahead; /* number of entries behind them that the next job will probably use */
	/* [n_cells + n_ahead]; read from the first to the last position that a query attends to,
	 * and the n_ahead entries */
	const uint32_t *cells;
	enum kv_type kv_type;
	/* of this layer and KV head: cell c's vector begins at k + c * k_cell_bytes */
	const void *k, *v;
	size_t k_cell_bytes, v_cell_bytes;
	/* the keys lie turned (KV_TURN); k_cell_bytes is kv_vector_bytes of one key */
	bool k_turned;
	bool v_paired; /* the values lie paired; only for types in blocks */
	uint32_t k_dim, v_dim; /* v may be the first v_dim values of k */
	uint32_t n_tokens, n_heads; /* the product of both is 1..ATTENTION_ROWS */
	const struct attention_query *queries; /* [n_tokens] */
	size_t q_stride;
	/* the previous job with this scratch had the same query vectors, n_heads, types and
	 * dimensions */
	bool q_kept;
	float scale; /* factor for the scores, usually 1 / sqrt(head dimension) */
	/* out: the result, with out_stride == v_dim; undefined for tokens without cells */
	struct attention_state part;
	float *scratch; /* kernels->attention_scratch(rows, k_dim, v_dim) floats */
};

/* One token of one value head of a gated delta net (Yang, Kautz, Hatamizadeh, arXiv 2412.06464, eq.
 * 10), on `columns` columns of the head's state S [d_k][d_v]. A column depends on no other. */
struct delta_step {
	float *state; /* [d_k][columns], updated; rows are `stride` floats apart */
	size_t stride;
	uint32_t d_k, columns;
	const float *q, *k; /* [d_k], both normalised, q scaled */
	const float *v; /* [columns] */
	float decay, rate; /* from delta_gates */
	float *out; /* [columns]; NULL: only the state is wanted, and q is not read */
};

/* Tokens of a vocabulary in a chunk of the sampler. */
#define SAMPLE_CHUNK 64

/*
 * The functions for one instruction set. All are pure: they touch only their arguments, allocate
 * nothing, and may run on many threads at once. Dimensions are checked when a model is loaded;
 * these functions assert.
 */
struct kernels {
	const char *name; /* "scalar", "avx2", "avx512", "reference" */
	bool (*supported)(void); /* true when this CPU can run the table */

	/* Quantises x[cols] to out[cols / 32]; cols % 32 == 0. */
	void (*quantise_q8)(const float *x, uint32_t cols, struct q8_block *out);

	/* y[t][r] = row r of w times activation t, for rows first..last-1 and all t < n. y[t]
	 * points to w->rows floats. A weight row is read from memory once for every 64 tokens. Any
	 * first and last give the same bits; multiples of 16 rows are fastest. */
	void (*matmul)(const struct matrix *w, uint32_t first, uint32_t last,
		const struct activation *x, uint32_t n, float *const *y);
	bool matmul_f32; /* matmul reads x->f32 for all types of weights */

	/* out[cols] = row of w as float32 (embedding look-up). */
	void (*dequantise_row)(const struct matrix *w, uint32_t row, float *out);

	/* RMSNorm (Zhang, Sennrich, arXiv 1910.07467, eq. 4): y[i] = (x[i] * (1 / sqrt(ss / n +
	 * eps))) * w[i], ss = NORM SUM of x * x. y may be x. The root and the division are
	 * correctly rounded float32. */
	void (*rms_norm)(const float *x, const float *w, float eps, uint32_t n, float *y);

	/* LayerNorm (Ba, Kiros, Hinton, arXiv 1607.06450): mean = (NORM SUM of x * 1) / n; d[i] =
	 * x[i] - mean; y[i] = fma(d[i] * (1 / sqrt(ss / n + eps)), w[i], b[i]), ss = NORM SUM of d
	 * * d. y may be x; it holds d meanwhile. */
	void (*layer_norm)(
		const float *x, const float *w, const float *b, float eps, uint32_t n, float *y);

	/* Rotary position embedding (Su et al., arXiv 2104.09864, section 3.4). Rotates the pairs
	 * of a head in place. cos_sin[2 * i] and [2 * i + 1] belong to pair i < n_rot / 2, which is
	 * (i, i + n_rot / 2) with neox, otherwise (2i, 2i + 1). a' = fma(a, c, -(b * s)); b' =
	 * fma(a, s, b * c). */
	void (*rope)(float *head, const float *cos_sin, uint32_t n_rot, bool neox);

	/* SwiGLU with beta = 1 (Shazeer, arXiv 2002.05202, eq. 6): out[i] = g[i] * (1 / (1 +
	 * exp(-g[i]))) * u[i], multiplied from left to right. out may be g. */
	void (*silu_mul)(const float *g, const float *u, uint32_t n, float *out);

	/* gpt-oss's form of SwiGLU (OpenAI, arXiv 2508.10925): clamped, with 1 added to u, and with
	 * the factor that makes x * sigmoid nearly a GELU (Hendrycks, Gimpel, arXiv 1606.08415).
	 * Let g' = min(g[i], 7) and u' = min(max(u[i], -7), 7). Then out[i] = g' * (1 / (1 +
	 * exp(-(1.702 * g')))) * (u' + 1), multiplied from left to right. out may be g. A NaN stays
	 * a NaN. */
	void (*swiglu_oai)(const float *g, const float *u, uint32_t n, float *out);

	/* In place: 1 / (1 + exp(-x[i])). */
	void (*sigmoid)(float *x, uint32_t n);

	/* y[i] = y[i] + x[i]. */
	void (*add)(float *y, const float *x, uint32_t n);

	/* y[i] = fma(a, x[i], y[i]). */
	void (*axpy)(float *y, float a, const float *x, uint32_t n);

	/* The index of the greatest x, the first of equals; n > 0. UINT32_MAX when any x is not
	 * finite. */
	uint32_t (*greatest)(const float *x, uint32_t n);

	/* z[i] = sane(sane(x[i]) / divisor), divisor > 0, where sane turns a NaN into -inf and +inf
	 * into the largest float. most[c] becomes the greatest of z[SAMPLE_CHUNK * c ..]; its sign
	 * is undefined when it is zero. z may be x. Returns true when all x were finite. */
	bool (*scale_logits)(const float *x, uint32_t n, float divisor, float *z, float *most);

	/* sums[c] = LANES sum of exp(z[i] - less) * 1 over the SAMPLE_CHUNK tokens (or fewer at the
	 * end) from SAMPLE_CHUNK * c on. */
	void (*exp_sums)(const float *z, uint32_t n, float less, float *sums);

	/* out[i] = the top 24 bits of word 0 of rand_philox(seed, stream, position, first + i)
	 * (shared/base/rand.h). #skip services/policy-controller/yield/yield.h 0 */
	void (*draws)(uint64_t seed, uint32_t stream, uint64_t position, uint32_t first,
		uint32_t out[SAMPLE_CHUNK]);

	/* Softmax in place: max, then e_i = exp(x_i - max), the LANES sum of e_i * 1, then e_i * (1
	 * / sum). */
	void (*softmax)(float *x, uint32_t n);

	/* out[i] = x[i] * (1 / (1 + exp(-g[i]))). */
	void (*sigmoid_mul)(const float *g, const float *x, uint32_t n, float *out);

	/* A causal convolution over time, separately for each channel: s starts from +0, s =
	 * fma(rows[t][i], w[t][i], s) for t = 0..taps-1; out[i] = s * (1 / (1 + exp(-s))). rows:
	 * oldest first; w: [taps][n]. */
	void (*conv_silu)(
		const float *const *rows, const float *w, uint32_t taps, uint32_t n, float *out);

	/* y[i] = (x[i] * (1 / sqrt(ss + eps))) * scale, ss = NORM SUM of x * x. y may be x. */
	void (*l2_norm)(const float *x, float eps, float scale, uint32_t n, float *y);

	/* For each of n value heads: decay = exp(a * softplus(alpha + dt)), rate = 1 / (1 +
	 * exp(-beta)). softplus(x) is x above 20. Otherwise let e = exp(x) and u = 1 + e; it is e
	 * where u is 1, else log(u) * (e / (u - 1)). */
	void (*delta_gates)(const float *a, const float *dt, const float *alpha, const float *beta,
		uint32_t n, float *decay, float *rate);

	/* For each column j: four partial sums from +0, r[i % 4] = fma(S[i][j], k[i], r[i % 4]), i
	 * ascending, are folded as m = (r0 + r2) + (r1 + r3); d = (v[j] - decay * m) * rate;
	 * S[i][j] = fma(k[i], d, S[i][j] * decay); out[j] = the sum of the new S[i][j] * q[i], in
	 * four partial sums in the same way. */
	void (*delta_step)(const struct delta_step *step);

	/* Attention over one split, in the order that numerics.md defines (section Attention). The
	 * maximum and the sum of the softmax are updated as scores come (Milakov, Gimelshein, arXiv
	 * 1805.02867, algorithm 3), and the output with them, so that the scores are never all in
	 * memory (FlashAttention: Dao et al., arXiv 2205.14135; with the division left to the end:
	 * Dao, arXiv 2307.08691, algorithm 1). Splits of ATTENTION_SPLIT positions and chunks of
	 * ATTENTION_CHUNK are counted from position 0, so that the bits depend on the attended
	 * positions alone. Stored keys and values are widened exactly.
	 *
	 * With keys and values in blocks, both products are products of integers, which need no
	 * order and run at twice the rate of float32. A block of KV_Q8_0 is multiplied with a query
	 * in blocks of quantise_q8; one of KV_Q16_0 with integers up to KV_Q16_QUERY_MOST. The
	 * weights take over the scales of the values and become integers up to KV_WEIGHT_MOST,
	 * whose sum over a chunk is bounded by KV_Q16_WEIGHTS_MOST with KV_Q16_0. (Zhang et al.,
	 * SageAttention, arXiv 2410.02367, multiply queries and keys of 8 bits, and find 8 bits too
	 * few for weights and values; here weights have up to 15.) */
	void (*attention)(const struct attention_job *job);
	/* number of floats */
	size_t (*attention_scratch)(uint32_t rows, uint32_t k_dim, uint32_t v_dim);

	/* Joins the state of the next split, in ascending order of positions, to the state of the
	 * splits before it. Splits are computed apart and joined by their maxima and sums as in
	 * Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023,
	 * crfm.stanford.edu/2023/10/12/flashdecoding.html). There the number of splits follows the
	 * machine; here it never does. For each row, with a part's most_1, sum_1 and out_1: most' =
	 * max(most, most_1), a = exp(most - most'), b = exp(most_1 - most'), sum = fma(sum_1, b,
	 * sum * a), out[d] = fma(out_1[d], b, out[d] * a). */
	void (*attention_join)(const struct attention_state *into,
		const struct attention_state *part, uint32_t rows, uint32_t v_dim);

	/* Call after the last join: out[d] = out[d] * (1 / sum). */
	void (*attention_finish)(
		const struct attention_state *state, uint32_t rows, uint32_t v_dim);

	/* Stores n values in a KV type, kv_vector_bytes(type, n) bytes. Float16 is rounded to
	 * nearest even. KV_Q8_0: a block is quantised as activations are (a short one as if zeros
	 * followed), and then its d is rounded to float16. KV_Q16_0: d is the greatest |x| /
	 * KV_Q16_MOST, rounded up to bfloat16, and the integers are x * (1 / d) rounded to nearest
	 * even. If the greatest |x| is below 2^-110, or one x is infinite or NaN, all integers are
	 * 0; in the latter case d is infinite. */
	void (*kv_store)(const float *x, uint32_t n, enum kv_type type, void *out);

	/* Store the same values as the vector of one cell among turned or paired vectors (KV_TURN).
	 * cells: where cell 0 begins. They write only the cell's own bytes, so other threads may
	 * store to other cells meanwhile. Paired: only for types in blocks. */
	void (*kv_store_turned)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
	void (*kv_store_paired)(
		const float *x, uint32_t n, enum kv_type type, void *cells, uint32_t cell);
};
